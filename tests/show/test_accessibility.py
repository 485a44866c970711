"""Card, film and page in a browser, judged by axe-core: no fault, on light and on dark."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from spmd_lab.show.theme import GROUND
from tests.conftest import chromium

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

    import spmd_lab as sl
    from spmd_lab.prove import VerifyReport

playwright = pytest.importorskip("playwright.sync_api")
FOUND = find_spec("axe_playwright_python")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield launched
        launched.close()


def faults(browser: Browser, path: Path, ready: str = "body") -> list[tuple[str, str, str, str]]:
    """What axe-core finds on a page, everything in it unfolded, on light and on dark."""
    assert FOUND is not None
    assert FOUND.submodule_search_locations
    axe = Path(FOUND.submodule_search_locations[0], "axe.min.js")
    page = browser.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector(ready)
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    page.wait_for_function("!document.querySelector('[data-card]:empty')")
    page.add_script_tag(path=axe)
    page.add_style_tag(content=":where(html) { background: Canvas }")  # without it, axe-core takes the ground for white
    found = []
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        told: list[dict[str, Any]] = page.evaluate("axe.run({ resultTypes: ['violations'] })")["violations"]
        found += [(scheme, each["impact"], each["id"], each["nodes"][0]["html"]) for each in told]
    page.close()
    return found


SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


pytestmark = [pytest.mark.browser, pytest.mark.skipif(FOUND is None, reason="axe-core is not installed")]


def dark(ground: str, text: str) -> str:
    return f"@media (prefers-color-scheme: dark){{:root{{background:{ground};color:{text}}}}}"


@pytest.mark.parametrize(
    "ground", [GROUND, dark("#111", "#dedede"), dark("#1e1e1e", "#ccc")], ids=["black", "JupyterLab", "VS Code"]
)
def test_the_card(browser: Browser, expansion: sl.Expansion, report: VerifyReport, ground: str, tmp_path: Path) -> None:
    path = tmp_path / "card.html"
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
    head += f"<style>{ground}</style>"
    card = expansion.card(report)._repr_html_()
    path.write_text(f"{head}<title>card</title><main><h1>a notebook</h1>{card}</main>", encoding="utf-8")
    assert faults(browser, path, "details") == []


def test_the_page(browser: Browser, expansion: sl.Expansion, report: VerifyReport, tmp_path: Path) -> None:
    assert faults(browser, expansion.to_html(tmp_path / "page.html", report), "details") == []


def test_the_film(browser: Browser, expansion: sl.Expansion, tmp_path: Path) -> None:
    assert faults(browser, expansion.film().to_html(tmp_path / "film.html"), "#frame b") == []


def test_a_fault_would_be_found(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    faint = '<p style="color:#777;background:#000">faint on black</p><p style="color:#888;background:#fff">on white</p>'
    path.write_text(f'<!doctype html><title>bad</title><img src="data:,"><button></button>{faint}')
    found = {fault for _, _, fault, _ in faults(browser, path)}
    assert {"html-has-lang", "image-alt", "button-name", "color-contrast"} <= found
    head = '<!doctype html><meta name="color-scheme" content="light dark"><title>dim</title>'
    path.write_text(f'{head}<p style="color:#666">too dim where the page is black</p>')
    assert [scheme for scheme, _, fault, _ in faults(browser, path) if fault == "color-contrast"] == ["dark"]
