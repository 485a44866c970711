"""A real JupyterLab in a real browser: a notebook is run, its card read, its film moved, a layout chosen."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest

from tests.conftest import chromium
from tests.show.models import expanded

if TYPE_CHECKING:
    from collections.abc import Iterator

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_spec("jupyterlab") is None, reason="JupyterLab is not installed"),
]

ROOT = Path(__file__).parents[2]
CELLS = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom tests.show.models import expanded\n\n"
    "expansion = expanded()\nexpansion",
    "expansion.film()",
    "expansion.live()",
)
METADATA = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A JupyterLab of its own, which ends with the tests: where its notebooks are."""
    folder = tmp_path_factory.mktemp("lab")
    cells = [nbformat.v4.new_code_cell(code) for code in CELLS]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=METADATA), folder / "seen.ipynb")
    nbformat.write(_from_elsewhere(), folder / "elsewhere.ipynb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    homes = {f"JUPYTER_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    options = ["--no-browser", "--allow-root", f"--port={port}", "--IdentityProvider.token=seen"]
    command = [sys.executable, "-m", "jupyterlab", *options, f"--ServerApp.root_dir={folder}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env={**os.environ, **homes}, stdout=log, stderr=log)
    try:
        _wait_for(f"http://127.0.0.1:{port}/api?token=seen")
        yield f"http://127.0.0.1:{port}/lab/tree/{{}}?token=seen"
    finally:
        process.terminate()
        process.wait(20)


def _from_elsewhere() -> nbformat.NotebookNode:
    """A notebook that was run by somebody else: it has outputs that are not signed here."""
    expansion = expanded()
    shown = {"text/html": expansion._repr_html_(), "text/plain": repr(expansion)}
    output = nbformat.v4.new_output("execute_result", shown, execution_count=1)
    cell = nbformat.v4.new_code_cell("expansion", execution_count=1, outputs=[output])
    return nbformat.v4.new_notebook(cells=[cell], metadata=METADATA)


def _wait_for(address: str) -> None:
    end = time.monotonic() + 40
    while True:
        try:
            urllib.request.urlopen(address, timeout=5).close()
        except OSError:
            assert time.monotonic() < end, "JupyterLab does not answer"
            time.sleep(0.3)
        else:
            return


@pytest.fixture(scope="module")
def lab(server: str) -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1300, "height": 2400})
        page.set_default_timeout(40_000)
        page.goto(server.format("seen.ipynb"))
        page.wait_for_selector(".jp-NotebookPanel .jp-CodeCell")
        page.get_by_text(re.compile(r"\| Idle$")).wait_for()
        yield page
        browser.close()


def test_a_notebook_is_run_and_its_outputs_answer(lab: Any) -> None:
    outputs = lab.locator(".jp-CodeCell").locator(".jp-OutputArea-output")
    lab.get_by_role("menuitem", name="Run", exact=True).click()
    lab.locator(".lm-Menu-itemLabel", has_text=re.compile(r"^Run All Cells$")).click()

    card = outputs.nth(0)
    card.get_by_text("4 ranks, one program").wait_for()
    assert "sent per rank" in card.inner_text()
    blocks = card.locator("details", has=lab.locator("summary", has_text=re.compile(r"^blocks\.1"))).first
    operands = blocks.get_by_role("columnheader", name="operand").first
    blocks.locator("> summary").click()
    assert not operands.is_visible()
    for each in blocks.locator(":scope details > summary").all():
        if each.is_visible():
            each.click()
    assert operands.is_visible()
    assert blocks.locator("img").first.evaluate("(image) => image.complete && image.naturalWidth > 0")

    film = outputs.nth(1)
    film.locator("b", has_text=re.compile(r"^step 1 of \d+: ")).wait_for()
    before = film.locator("b", has_text=re.compile(r"^step 1 of \d+: ")).inner_text()
    film.locator("[role=slider]").first.focus()
    for _ in range(3):
        lab.keyboard.press("ArrowRight")
    changed = film.locator("b", has_text=re.compile(r"^step 4 of \d+: "))
    changed.wait_for()
    assert changed.inner_text().partition(": ")[2] != before.partition(": ")[2]

    live = outputs.nth(2)
    live.get_by_label("blocks.*.up.weight").select_option("f32[64, 16]")
    told = live.get_by_text(re.compile(r"\d+ -> \d+ collectives, .* sent per rank: "))
    told.wait_for()
    assert "'blocks.*.up.bias': 'f32[64/tp]'" in live.inner_text()
    assert "'blocks.*.up.weight'" not in live.locator("pre", has_text="sl.expand(").inner_text()


def test_a_notebook_that_is_not_trusted_reads_too(lab: Any, server: str) -> None:
    lab.goto(server.format("elsewhere.ipynb"))
    card = lab.locator(".jp-OutputArea-output:visible").first
    card.get_by_text("4 ranks, one program").wait_for()
    assert lab.get_by_title(re.compile("not trusted", re.IGNORECASE)).count()
    assert "sent per rank" in card.inner_text()
    while closed := [each for each in card.locator("details:not([open]) > summary").all() if each.is_visible()]:
        closed[0].click()
    told = card.inner_text()
    for facts in ("all_reduce", "f32[64/tp, 16]", "operand", "needs"):
        assert facts in told, facts
    assert card.locator("img").first.evaluate("(image) => image.complete && image.naturalWidth > 0")
