"""Real ranks for a notebook: results, prints, and every way in which a call can go wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import spmd_lab as sl
from spmd_lab.errors import ArgumentError, RankError
from spmd_lab.run.program_requests import ProgramRequest
from spmd_lab.run.rank_work import ProgramWork
from spmd_lab.run.ranks import _packed
from tests.run import odd_operators


def processes() -> list[int]:
    """The ranks that are alive on this machine."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if b"spmd_lab.run.rank_process" in command:
            found.append(int(folder.name))
    return found


def test_a_function_runs_on_every_rank(ranks: sl.Ranks, capsys: pytest.CaptureFixture[str]) -> None:
    before = dict(os.environ)
    offset = torch.tensor(0.5)

    def total(x: torch.Tensor, *, scale: float) -> dict[str, torch.Tensor]:
        mine = (x + offset) * (dist.get_rank() + 1) * scale
        print("mine is", mine.item())
        dist.all_reduce(mine)
        return {"total": mine.requires_grad_()}

    results = ranks.run(total, torch.tensor(1.0), scale=2.0)
    assert [result["total"].item() for result in results] == [9.0, 9.0]
    assert not results[0]["total"].requires_grad
    assert capsys.readouterr().out == "[rank 0] mine is 3.0\n[rank 1] mine is 6.0\n"
    assert ranks.printed == ["mine is 3.0\n", "mine is 6.0\n"]
    assert repr(ranks) == f"<Ranks: 2 on {ranks.found}, running>"
    assert dict(os.environ) == before
    assert not dist.is_initialized()


def test_what_a_rank_keeps_is_there_in_the_next_call(ranks: sl.Ranks) -> None:
    def keep() -> int:
        import builtins

        builtins.kept = getattr(builtins, "kept", 0) + dist.get_rank() + 1  # type: ignore[attr-defined]
        return builtins.kept  # type: ignore[attr-defined, no-any-return]

    assert ranks.run(keep) == [1, 2]
    assert ranks.run(keep) == [2, 4]


def test_work_that_cannot_travel_is_refused(ranks: sl.Ranks) -> None:
    lock = threading.Lock()
    with pytest.raises(ArgumentError, match="the work cannot be sent to other processes: TypeError") as caught:
        ranks.run(lambda: lock.locked())
    assert "make inside the function what belongs to one process" in str(caught.value)


def test_functions_may_use_the_package(ranks: sl.Ranks) -> None:
    assert ranks.run(lambda: sl.Mesh(dp=2).size) == [2, 2]


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(7, 6), nn.Linear(6, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(tokens).relu())


def expanded() -> sl.Expansion:
    torch.manual_seed(0)
    targets = torch.tensor([0, 1, 2, 3, 0])
    loss = lambda out: F.cross_entropy(out, targets)  # noqa: E731
    mesh = sl.Mesh(dp=2)
    return sl.spmd_expand(Head(), torch.tensor([1, 2, 3, 4, 6]), mesh=mesh, loss=loss, batch="dp")


def test_a_program_runs_on_shards_of_whole_tensors(ranks: sl.Ranks) -> None:
    expansion = expanded()
    torch.manual_seed(0)
    model, tokens = Head(), torch.tensor([6, 5, 0, 1, 1])
    expected = model(tokens)
    loss = F.cross_entropy(expected, torch.tensor([0, 1, 2, 3, 0]))
    loss.backward()
    results = ranks.run(expansion.program, tokens)
    names = [each.name for each in expansion.traced.outputs]
    wholes = {"out": expected, "loss": loss} | {f"grad({name})": p.grad for name, p in model.named_parameters()}
    for rank, flat in enumerate(results):
        for name, layout, local in zip(names, expansion.output_layouts, flat, strict=True):
            assert layout is not None
            torch.testing.assert_close(local, wholes[name].detach()[layout.slices(rank)])


def test_a_saved_program_runs_on_all_of_its_inputs(ranks: sl.Ranks, tmp_path: Path) -> None:
    expansion = expanded()
    saved = sl.load(expansion.program.save(tmp_path / "head.spmd"))
    values = [value.detach() for value in expansion.traced.values]
    for mine, theirs in zip(ranks.run(saved, *values), ranks.run(expansion.program), strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert torch.equal(one, other)
    with pytest.raises(ArgumentError, match="flat inputs, not 1"):
        ranks.run(saved, values[0])


def test_different_programs_are_refused_before_anything_is_sent(ranks: sl.Ranks) -> None:
    one, other = (
        sl.spmd_expand(lambda x, n=n: (x * n).sum(), torch.ones(4), mesh=sl.Mesh(dp=2), batch="dp").program
        for n in (2, 3)
    )
    works = [
        _packed(ProgramWork(request.program, request.inputs([rank])[0], {}))
        for rank, request in enumerate(ProgramRequest.of(each, (), 2) for each in (one, other))
    ]
    with pytest.raises(RankError, match=r"ranks have different programs: rank 0 has .* rank 1 has") as caught:
        ranks._asked(works)
    assert caught.value.rank == 0  # all of them say so
    assert ranks.is_running
    assert caught.value.node is None


def test_a_failing_program_names_its_node_and_line(ranks: sl.Ranks) -> None:
    with pytest.raises(RankError) as caught:
        ranks.run(expanded().program, torch.tensor([1, 2, 3, 99, 1]))
    assert caught.value.rank == 1
    assert str(caught.value).startswith("rank 1 raised IndexError")
    assert "node: embedding, of step embedding, test_ranks.py:" in str(caught.value)
    assert "self.out(self.table(tokens).relu())" in str(caught.value)


def test_ranks_that_cannot_start_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    with pytest.raises(RankError, match="2 ranks did not start") as caught, sl.Ranks(2, device="cpu") as lost:
        lost.run(dist.get_rank)
    assert "nowhere0" in str(caught.value)
    assert processes() == []
    assert list(Path(tempfile.gettempdir()).glob("spmd_lab_ranks_*")) == []


def test_a_rank_that_raises_ends_the_call(ranks: sl.Ranks) -> None:
    def lonely() -> None:
        if dist.get_rank() == 1:
            raise ValueError("no such shard")
        dist.barrier()

    ranks.run(dist.get_rank)
    start = time.monotonic()
    with pytest.raises(RankError) as caught:
        ranks.run(lonely)
    assert time.monotonic() - start < 10
    assert caught.value.rank == 1
    assert str(caught.value).startswith("rank 1 raised ValueError: no such shard\nTraceback")
    assert "in lonely" in str(caught.value)
    assert "rank_work.py" not in str(caught.value)
    assert processes() == []
    assert not ranks.is_running


def test_a_rank_that_dies_ends_the_call_with_its_node(ranks: sl.Ranks) -> None:
    ranks.run(odd_operators.define)
    with odd_operators.rule_of(odd_operators.vanish):
        program = odd_operators.program_of(odd_operators.vanish)
    assert [each[0].item() for each in ranks.run(program, torch.ones(4))] == [4.0, 4.0]
    start = time.monotonic()
    with pytest.raises(RankError, match="rank 1 died while it was at work") as caught:
        ranks.run(program, torch.tensor([1.0, 1.0, 1.0, -1.0]))
    assert time.monotonic() - start < 10
    assert "exitcode  : 7" in str(caught.value)
    assert "node: vanish, of step vanish, odd_operators.py:" in str(caught.value)
    assert "op(x * 1.0).sum()" in str(caught.value)
    assert processes() == []


@pytest.mark.usefixtures("hears_ctrl_c")
def test_an_interrupt_of_the_kernel_interrupts_the_ranks(ranks: sl.Ranks) -> None:
    ranks.run(dist.get_rank)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        ranks.run(time.sleep, 60)
    assert time.monotonic() - start < 10
    assert processes() == []
    assert list(Path(tempfile.gettempdir()).glob("spmd_lab_ranks_*")) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"size": 0}, "0 ranks\n  argument: size=0\n  try: a whole number from 1"),
        ({"size": 2, "device": "tpu"}, "2 ranks cannot run on 'tpu' here"),
        ({"size": 2, "patience_s": 0}, "ranks cannot wait for 0 seconds\n  argument: patience_s=0"),
        ({"size": 2, "patience_s": -1.0}, "ranks cannot wait for -1.0 seconds"),
        ({"size": 2, "patience_s": float("nan")}, "ranks cannot wait for nan seconds"),
        ({"size": 2, "patience_s": float("inf")}, "ranks cannot wait for inf seconds"),
    ],
)
def test_ranks_that_cannot_be_are_refused(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        sl.Ranks(**arguments)  # type: ignore[arg-type]
    assert str(caught.value).startswith(text)


def test_work_that_does_not_fit_is_refused_before_anything_starts() -> None:
    ranks = sl.Ranks(3)
    with pytest.raises(ArgumentError, match=r"the program is for Mesh\(dp=2\), there are 3 ranks"):
        ranks.run(expanded().program)
    with pytest.raises(ArgumentError, match="int cannot be called"):
        ranks.run(3)  # type: ignore[arg-type]
    assert not ranks.is_running


def test_nothing_is_left_when_the_kernel_is_killed(tmp_path: Path) -> None:
    before = processes()
    script = "import sys, time, spmd_lab as sl; r = sl.Ranks(1); r.run(int); print('up', flush=True); time.sleep(60)"
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    kernel = subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE)
    assert kernel.stdout is not None
    assert kernel.stdout.readline() == b"up\n"
    assert len(list(tmp_path.glob("spmd_lab_ranks_*"))) == 1
    kernel.kill()
    kernel.wait()
    kernel.stdout.close()
    deadline = time.monotonic() + 10
    while (processes() != before or list(tmp_path.glob("spmd_lab_ranks_*"))) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes() == before
    assert list(tmp_path.glob("spmd_lab_ranks_*")) == []
