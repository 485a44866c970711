"""What a shell shows of an error: the user's lines, and what is wrong; everything else only where it is asked for."""

from __future__ import annotations

import re
import sys
from traceback import extract_tb
from typing import TYPE_CHECKING

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

if TYPE_CHECKING:
    from collections.abc import Iterator

SETUP = """
import torch, spmd_lab as sl
def picks(x):
    chosen = x[x > 0]
    return chosen.sum()
def expands(axis):
    return sl.spmd_expand(torch.relu, torch.ones(4), mesh=sl.Mesh(dp=2), batch=axis)
"""
TRACED, MISSPELT = "sl.trace(picks, torch.ones(4))", "expands('pd')"


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    shell = InteractiveShell.instance()
    assert shell.run_cell(SETUP).success
    yield shell
    InteractiveShell.clear_instance()


def shown(shell: InteractiveShell, code: str) -> str:
    with capture_output() as told:
        assert not shell.run_cell(code).success
    return re.sub(r"\x1b\[[\d;]*m", "", told.stdout)


def files(error: BaseException | None) -> list[str]:
    assert error is not None
    return [frame.filename for frame in extract_tb(error.__traceback__)]


def test_the_users_lines_are_shown_and_no_others(shell: InteractiveShell) -> None:
    told = shown(shell, MISSPELT)
    assert "----> 1 expands('pd')" in told
    assert "return sl.spmd_expand(torch.relu" in told
    assert told.rstrip().endswith("argument: batch='pd'\n  try: did you mean 'dp'?")
    assert "spmd_lab/" not in told


def test_so_are_those_of_the_cause(shell: InteractiveShell) -> None:
    told = shown(shell, TRACED)
    assert "chosen = x[x > 0]" in told
    assert "DynamicOutputShapeException: aten.nonzero.default" in told
    assert told.index("was the direct cause of") < told.index("----> 1 sl.trace(picks")
    assert not re.search(r"spmd_lab/|torch/", told)


def test_nothing_is_lost_for_a_debugger(shell: InteractiveShell) -> None:
    shown(shell, TRACED)
    error = sys.last_value
    for each in (error, error.__cause__):
        assert any("spmd_lab" in file for file in files(each))


def test_every_frame_is_shown_on_demand(shell: InteractiveShell) -> None:
    shell.InteractiveTB.set_mode("Verbose")
    assert re.search(r"spmd_lab/expand/\w+\.py", shown(shell, MISSPELT))
