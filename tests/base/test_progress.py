"""Bars of long work: silent at first, on a terminal alone, and gone however the work ends."""

from __future__ import annotations

import contextlib
import io
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from tqdm import tqdm

import spmd_lab as sl
from spmd_lab import progress as bars
from spmd_lab.expand.subgraph import forget_subgraphs
from spmd_lab.progress import counting, progress
from tests.process import process_as_found

if TYPE_CHECKING:
    from collections.abc import Callable


ROOT = Path(__file__).parents[2]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(bars, "monotonic", clock)
    return clock


def watched(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> io.StringIO:
    """No notebook, and somebody before a terminal; pytest has a stream of its own for each fixture."""
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    return stream


def seen(terminal: io.StringIO) -> str:
    """What still stands on the last line."""
    return terminal.getvalue().rpartition("\r")[2]


def test_items_pass_as_they_are() -> None:
    assert list(progress(iter("abc"), "spelling")) == ["a", "b", "c"]
    assert list(progress([], "nothing", 0)) == []


def test_two_seconds_pass_in_silence(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch, Terminal())
    for _ in progress(range(5), "walking", 5):
        clock.now += 0.39
    assert terminal.getvalue() == ""
    for _ in progress(range(5), "walking", 5):
        clock.now += 0.51
    assert "walking:  80%" in terminal.getvalue()
    assert "4/5" in terminal.getvalue()


def test_work_that_is_no_loop_is_counted(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch, Terminal())
    with counting("tracing Net") as done:
        for _ in range(3):
            clock.now += 1.1
            done()
        assert "tracing Net: 2" in terminal.getvalue()


@pytest.mark.parametrize("ends", [ValueError, KeyboardInterrupt, None])
def test_a_bar_goes_however_its_loop_ends(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, ends: type[BaseException] | None
) -> None:
    terminal = watched(monkeypatch, Terminal())
    threads = threading.active_count()
    kept: BaseException | None = None  # its traceback holds the loop
    try:
        for place in progress(range(9), "walking", 9):
            clock.now += 1
            if place == 5:
                assert "walking" in seen(terminal)
                if ends is None:
                    break
                raise ends
    except BaseException as error:
        kept = error
    assert type(kept) is (ends or type(None))
    assert "walking" in terminal.getvalue()
    assert seen(terminal) == ""
    assert not tqdm._instances
    assert threading.active_count() == threads


@pytest.mark.parametrize("how", ["no terminal", "a rank", "a child"])
def test_nobody_is_told_who_does_not_watch(clock: Clock, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    stream = watched(monkeypatch, io.StringIO() if how == "no terminal" else Terminal())
    if how == "a rank":
        monkeypatch.setenv("WORLD_SIZE", "2")
    if how == "a child":
        monkeypatch.setattr(bars, "parent_process", object)
    for _ in progress(range(5), "walking", 5):
        clock.now += 1
    assert stream.getvalue() == ""


# --- the stages -----------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu())


NET, X = Net(), torch.randn(4, 8)


def trace_it() -> sl.TracedGraph:
    return sl.trace(NET, X, loss=lambda out: out.square().mean())


def expand_it(traced: sl.TracedGraph) -> sl.Expansion:
    return sl.expand(traced, sl.Mesh(dp=2, tp=2), batch="dp", params=sl.colwise("up", axis="tp"))


@pytest.mark.parametrize(
    ("stage", "told"),
    [
        (trace_it, "tracing Net: "),
        (lambda: expand_it(trace_it()), "expanding Net: "),
        (lambda: expand_it(trace_it()).program, "rebuilding Net: "),
        (lambda: expand_it(trace_it()).program.verify(), "running 4 ranks: "),
        (lambda: expand_it(trace_it()).program.verify(), "shaking Net: "),
        (lambda: expand_it(trace_it()).film(), "filming Net: "),
    ],
)
def test_every_stage_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, stage: Callable[[], object], told: str
) -> None:
    terminal = watched(monkeypatch, Terminal())
    monkeypatch.setattr(bars, "_SILENT", 0.0)
    stage()
    assert told in terminal.getvalue()
    assert seen(terminal) == ""


# --- interrupts -----------------------------------------------------------------------------------


def interrupted_at(monkeypatch: pytest.MonkeyPatch, stage: str, place: int) -> None:
    """Press Ctrl+C when a stage has done so many of its pieces."""
    count = bars._Count.__call__

    def pressed(self: Any) -> None:
        count(self)
        if self._what.startswith(stage) and self._done == place:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(bars._Count, "__call__", pressed)


def whole() -> sl.Expansion:
    expansion = expand_it(trace_it())
    assert expansion.program.verify().ok
    return expansion


@pytest.mark.parametrize(
    ("stage", "place"),
    [
        ("tracing", 5),
        ("tracing", 25),
        ("tracing", 60),
        ("expanding", 9),
        ("rebuilding", 9),
        ("running", 9),
        ("shaking", 9),
    ],
)
@pytest.mark.usefixtures("hears_ctrl_c")
def test_each_stage_can_be_interrupted(monkeypatch: pytest.MonkeyPatch, stage: str, place: int) -> None:
    before = whole()
    forget_subgraphs()
    with process_as_found(), monkeypatch.context() as patch:
        interrupted_at(patch, stage, place)
        with pytest.raises(KeyboardInterrupt):
            whole()
    after = whole()
    assert after.program.graph_module.code == before.program.graph_module.code
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("verb", "cut"), [("trace", "torch._dynamo.symbolic_convert"), ("expand", "torch.distributed.tensor._dtensor_spec")]
)
def test_an_import_is_not_cut_in_half(verb: str, cut: str) -> None:
    """What a first call imports is there, or as good as never begun, when it is called again."""
    code = f"""
import signal, sys
import torch
import spmd_lab as sl

signal.signal(signal.SIGINT, signal.default_int_handler)

class Pressed:
    def find_spec(self, name, *_):
        if name == {cut!r}:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

arguments = [torch.nn.Linear(4, 4), torch.ones(4, 4)] if {verb!r} == "trace" else []
sys.meta_path.insert(0, Pressed())
try:
    sl.{verb}(*arguments)
except KeyboardInterrupt:
    print("interrupted", {cut!r} in sys.modules)
expansion = sl.expand(sl.trace(torch.nn.Linear(4, 4), torch.ones(4, 4)), sl.Mesh(dp=2), batch="dp")
print(expansion.program.verify().ok)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "interrupted True\nTrue\n", done.stderr


@pytest.mark.usefixtures("hears_ctrl_c")
def test_a_process_group_outlives_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for stage in ("tracing", "expanding", "running"):
            with monkeypatch.context() as patch:
                interrupted_at(patch, stage, 9)
                with pytest.raises(KeyboardInterrupt):
                    whole()
        ones = torch.ones(2)
        dist.all_reduce(ones)
        assert ones.tolist() == [1.0, 1.0]
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it may come while something is freed
@pytest.mark.parametrize("moment", range(12))
def test_any_moment_is_one_for_an_interrupt(moment: int) -> None:
    """A timer presses Ctrl+C, wherever the work is by then."""

    def press(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, press)
    forget_subgraphs()
    try:
        with process_as_found(), contextlib.suppress(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.004 + 0.02 * moment)
            whole()
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    whole()
