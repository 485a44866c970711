"""Bars in a real kernel: shown to somebody who could answer, and to no one else; gone from the page afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

jupyter_client = pytest.importorskip("jupyter_client.manager", reason="jupyter_client is not installed")

ROOT = Path(__file__).parents[2]
SETUP = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
import spmd_lab as sl, torch
from spmd_lab import progress as bars
bars._SILENT = 0.0

def walk(steps=3):
    for each in bars.progress(range(steps), "walking", steps):
        torch.ones(9)
"""
BAR = "application/vnd.jupyter.widget-view+json"


class Kernel:
    """A kernel, and what a page would show of each request."""

    def __init__(self, manager: Any, client: Any) -> None:
        self.manager = manager
        self.client = client

    def run(self, code: str, somebody: bool = True, interrupts: bool = False) -> list[Any]:
        """What a request leaves on the page; it may be interrupted as soon as something is displayed."""
        shown: dict[object, Any] = {}

        def hears(message: Any) -> None:
            kind, content = message["header"]["msg_type"], message["content"]
            if kind in ("display_data", "update_display_data"):
                self.displayed.append(content["data"])
                shown[content["transient"]["display_id"]] = content["data"]
                if interrupts and len(self.displayed) == 1:
                    self.manager.interrupt_kernel()
            elif kind in ("stream", "error", "execute_result"):
                shown[len(shown)] = content

        self.displayed: list[Any] = []
        self.client.execute_interactive(code, allow_stdin=somebody, timeout=60, output_hook=hears)
        return list(shown.values())


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    manager, client = jupyter_client.start_new_kernel()
    found = Kernel(manager, client)
    assert found.run(SETUP) == []
    yield found
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_a_bar_is_shown_and_leaves_nothing(kernel: Kernel) -> None:
    assert kernel.run("walk()") == [{"text/plain": ""}]
    assert any(BAR in each for each in kernel.displayed)


@pytest.mark.parametrize(("code", "somebody"), [("walk()", False), ("%%capture\nwalk()", True)])
def test_where_nobody_watches_there_is_none(kernel: Kernel, code: str, somebody: bool) -> None:
    assert kernel.run(code, somebody) == []
    assert kernel.displayed == []


def test_an_interrupt_leaves_nothing_but_its_error(kernel: Kernel) -> None:
    left = kernel.run("walk(10**9)", interrupts=True)
    assert {"text/plain": ""} in left
    assert [each["ename"] for each in left if "ename" in each] == ["KeyboardInterrupt"]
    assert not any(BAR in each for each in left)
    alive = "import threading; from tqdm.notebook import tqdm; len(tqdm._instances), threading.active_count()"
    (told,) = kernel.run(alive)
    (after,) = kernel.run(f"walk()\n{alive}")[1:]
    assert told["data"] == after["data"]


def test_an_expansion_is_interrupted_and_runs_again(kernel: Kernel) -> None:
    code = 'sl.spmd_expand(torch.nn.Linear(4, 2), torch.ones(8, 4), mesh=sl.Mesh(dp=4), batch="dp").program'
    left = kernel.run(f"while True:\n    {code}", interrupts=True)
    assert [each["ename"] for each in left if "ename" in each] == ["KeyboardInterrupt"]
    (told,) = [each for each in kernel.run(f"{code}.verify().ok, torch.distributed.is_initialized()") if "data" in each]
    assert told["data"]["text/plain"] == "(True, False)"
