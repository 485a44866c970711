"""Card, film and page in a browser, judged by axe-core: no serious fault, on light and on dark."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import chromium

if TYPE_CHECKING:
    import spmd_lab as sl
    from spmd_lab.prove import VerifyReport

playwright = pytest.importorskip("playwright.sync_api")
FOUND = find_spec("axe_playwright_python")


def faults(path: Path, ready: str = "body") -> list[tuple[str, str, str, str]]:
    """Serious faults of a page, everything in it unfolded."""
    assert FOUND is not None
    assert FOUND.submodule_search_locations
    axe = Path(FOUND.submodule_search_locations[0], "axe.min.js").read_text(encoding="utf-8")
    found: list[tuple[str, str, str, str]] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_context(color_scheme=scheme).new_page()
            page.goto(path.as_uri())
            page.wait_for_selector(ready)
            page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
            page.evaluate(axe)
            told: list[dict[str, Any]] = page.evaluate("axe.run()")["violations"]
            found += [
                (scheme, each["impact"], each["id"], each["nodes"][0]["html"])
                for each in told
                if each["impact"] in ("serious", "critical")
            ]
        browser.close()
    return found


pytestmark = [pytest.mark.browser, pytest.mark.skipif(FOUND is None, reason="axe-core is not installed")]


def test_the_card(expansion: sl.Expansion, report: VerifyReport, tmp_path: Path) -> None:
    path = tmp_path / "card.html"
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
    path.write_text(f"{head}<title>card</title>{expansion.card(report)._repr_html_()}", encoding="utf-8")
    assert faults(path, "details") == []


def test_the_page(expansion: sl.Expansion, report: VerifyReport, tmp_path: Path) -> None:
    assert faults(expansion.to_html(tmp_path / "page.html", report), "details") == []


def test_the_film(expansion: sl.Expansion, tmp_path: Path) -> None:
    assert faults(expansion.film().to_html(tmp_path / "film.html"), "#frame b") == []


def test_a_fault_would_be_found(tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text('<!doctype html><title>bad</title><img src="data:,"><button></button>')
    assert {"html-has-lang", "image-alt", "button-name"} <= {fault for _, _, fault, _ in faults(path)}
