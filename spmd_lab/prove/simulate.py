"""Runs the program of every rank in this process, side by side: where ranks communicate, they meet."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

from spmd_lab.errors import MeshError, VerificationError
from spmd_lab.progress import progress
from spmd_lab.prove.collectives import perform
from spmd_lab.prove.one_rank import Meeting, Plan, Run, SimulationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch
    from torch import fx

    from spmd_lab.mesh import Mesh
    from spmd_lab.prove.one_rank import Report

__all__ = ["Observer", "Reports", "simulate"]


class Observer(Protocol):
    """Is told what the ranks hold, as soon as all of them hold it."""

    def value(self, name: str, tensors: Sequence[Any]) -> None:
        """A value of the traced program, as each rank holds it."""

    def operand(self, step: str, index: int, before: Sequence[Any], after: Sequence[Any]) -> None:
        """An operand of a step, as each rank holds it before and after its redistribution."""


def simulate(
    graphs: Sequence[fx.GraphModule], mesh: Mesh, inputs: Sequence[Sequence[torch.Tensor]], observer: Observer
) -> list[tuple[Any, ...]]:
    """Run the graph of each rank on its inputs.

    Parameters
    ----------
    graphs : sequence of torch.fx.GraphModule
        One per rank; ranks may share one. The group of a collective is the name of a mesh axis.
    mesh : Mesh
        The mesh.
    inputs : sequence of sequence of torch.Tensor
        The flat local inputs of each rank.
    observer : Observer
        Is told of every value on its way.

    Returns
    -------
    list of tuple
        The flat outputs of each rank.

    Raises
    ------
    SimulationError
        If a rank cannot run an operator, or ranks of a group do not ask for the same collective.
    """
    plans: dict[int, Plan] = {}
    for graph in graphs:
        if id(graph) not in plans:
            plans[id(graph)] = Plan(graph)
    private = any(plan.mutates for plan in plans.values())
    runs = [
        Run(rank, plans[id(graph)], [each.clone() for each in given] if private else given)
        for rank, (graph, given) in enumerate(zip(graphs, inputs, strict=True))
    ]
    reports = Reports(len(runs), observer)
    stops = max((plan.stops for plan in plans.values()), default=0)
    for _ in progress(_rounds(runs), f"running {len(runs)} ranks", stops + 1):
        moved = [_advance(run, reports) for run in runs]
        met = _meet(runs, mesh, private)
        if not any(moved) and not met:
            raise _stuck(runs, mesh)
    reports.close()
    return [run.outputs for run in runs]


def _rounds(runs: Sequence[Run]) -> Iterator[None]:
    """One for as long as a rank has something to do."""
    while not all(run.finished for run in runs):
        yield


class Reports:
    """Gathers what ranks report, and passes it on once all of them have."""

    def __init__(self, ranks: int, observer: Observer) -> None:
        self._ranks = ranks
        self._observer = observer
        self._gathered: dict[tuple[object, ...], dict[int, tuple[Any, ...]]] = {}
        self._times: list[Counter[tuple[object, ...]]] = [Counter() for _ in range(ranks)]

    def add(self, rank: int, report: Report) -> None:
        """Take what one rank reports."""
        self._times[rank][report.key] += 1
        key = (*report.key, self._times[rank][report.key])
        found = self._gathered.setdefault(key, {})
        found[rank] = report.held
        if len(found) == self._ranks:
            del self._gathered[key]
            columns = list(zip(*(found[each] for each in range(self._ranks)), strict=True))
            if report.key[0] == "value":
                self._observer.value(str(report.key[1]), columns[0])
            else:
                step, index = report.key[1:]
                self._observer.operand(str(step), int(str(index)), *columns)

    def close(self) -> None:
        """Every value that some rank has must have been computed by all of them."""
        for key, found in self._gathered.items():
            missing = next(rank for rank in range(self._ranks) if rank not in found)
            raise SimulationError(
                f"rank {missing} never computes {key[0]} {key[1]}, as rank {min(found)} does",
                str(key[1]),
                missing,
                "the graphs of all ranks must carry the same values",
            )


def _advance(run: Run, reports: Reports) -> bool:
    """Let a rank go on to its next report, unless it waits or has finished."""
    if run.finished or run.waiting is not None:
        return False
    report = run.resume()
    if report is not None:
        reports.add(run.rank, report)
    return True


def _meet(runs: Sequence[Run], mesh: Mesh, private: bool) -> bool:
    """Carry out the collectives whose groups are complete."""
    met = False
    for run in runs:
        if run.waiting is None:
            continue
        members = [runs[rank] for rank in _group(run, mesh)]
        meetings = [member.waiting for member in members if member.waiting is not None]
        axis = run.waiting.request.axis
        if len(meetings) < len(members) or any(meeting.request.axis != axis for meeting in meetings):
            continue
        results = _carried_out(members, meetings)
        for member, result in zip(members, results, strict=True):
            member.receive(result.clone() if private else result)
        met = True
    return met


def _group(run: Run, mesh: Mesh) -> tuple[int, ...]:
    """The ranks that a waiting rank waits for."""
    meeting = run.waiting
    assert meeting is not None
    try:
        group = mesh.group(run.rank, meeting.request.axis)
    except MeshError as error:
        raise SimulationError(error.what, meeting.step, run.rank, error.hint) from None
    if meeting.request.group_size not in (None, len(group)):
        raise SimulationError(
            f"rank {run.rank} runs {meeting.request} over {meeting.request.group_size} ranks; "
            f"axis {meeting.request.axis!r} has {len(group)}",
            meeting.step,
            run.rank,
        )
    return group


def _carried_out(members: Sequence[Run], meetings: Sequence[Meeting]) -> list[torch.Tensor]:
    first = meetings[0]
    for member, meeting in zip(members, meetings, strict=True):
        if meeting.step != first.step or not meeting.request.agrees_with(first.request):
            raise SimulationError(
                f"rank {members[0].rank} asks for {first.request} in step {first.step}, "
                f"rank {member.rank} for {meeting.request} in step {meeting.step}",
                first.step,
                member.rank,
                "ranks of a group must run the same collectives in the same order",
            )
    requests = [meeting.request for meeting in meetings]
    try:
        return perform(first.request, [meeting.tensor for meeting in meetings], requests)
    except VerificationError as error:
        ranks = f"ranks {', '.join(str(member.rank) for member in members)}: "
        raise SimulationError(ranks + error.what, first.step, members[0].rank, error.hint) from error


def _stuck(runs: Sequence[Run], mesh: Mesh) -> SimulationError:
    """Say who waits for whom, when nobody can go on."""
    waiting = next(run for run in runs if run.waiting is not None)
    meeting = waiting.waiting
    assert meeting is not None
    absent = next(
        runs[rank]
        for rank in _group(waiting, mesh)
        if runs[rank].waiting is None or runs[rank].waiting.request.axis != meeting.request.axis  # type: ignore[union-attr]
    )
    other = absent.waiting
    does = "has finished" if other is None else f"waits for {other.request} in step {other.step}"
    return SimulationError(
        f"rank {waiting.rank} waits for {meeting.request} in step {meeting.step}; rank {absent.rank} {does}",
        meeting.step,
        waiting.rank,
        "ranks of a group must run the same collectives in the same order",
    )
