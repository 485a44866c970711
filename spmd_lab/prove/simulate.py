"""Runs the program of every rank in this process, side by side: where ranks communicate, they meet."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import fx

from spmd_lab.errors import MeshError, SpmdLabError, VerificationError
from spmd_lab.prove.collectives import WAIT, Request, is_collective, perform, request_of
from spmd_lab.torch_internals.mutation import is_mutating

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from spmd_lab.mesh import Mesh

__all__ = ["Observer", "SimulationError", "operand_ends", "simulate"]


class SimulationError(VerificationError):
    """A program that ranks cannot run together.

    Attributes
    ----------
    step : str or None
        The step where they stop.
    rank : int
        The first rank concerned.
    """

    def __init__(self, what: str, step: str | None, rank: int, hint: str | None = None) -> None:
        super().__init__(what, node=step, hint=hint)
        self.step = step
        self.rank = rank


class Observer(Protocol):
    """Is told what the ranks hold, as soon as all of them hold it."""

    def value(self, name: str, tensors: Sequence[Any]) -> None:
        """A value of the traced program, as each rank holds it."""

    def operand(self, step: str, index: int, before: Sequence[Any], after: Sequence[Any]) -> None:
        """An operand of a step, as each rank holds it before and after its redistribution."""


@dataclass(frozen=True)
class _Meeting:
    """A rank that waits for its group."""

    step: str | None
    request: Request
    tensor: torch.Tensor


@dataclass(frozen=True)
class _Report:
    """Something that a rank holds and the others will hold too."""

    key: tuple[object, ...]
    held: tuple[Any, ...]


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
    plans: dict[int, _Plan] = {}
    for graph in graphs:
        if id(graph) not in plans:
            plans[id(graph)] = _Plan(graph)
    private = any(plan.mutates for plan in plans.values())
    runs = [
        _Run(rank, plans[id(graph)], [each.clone() for each in given] if private else given)
        for rank, (graph, given) in enumerate(zip(graphs, inputs, strict=True))
    ]
    reports = _Reports(len(runs), observer)
    while not all(run.finished for run in runs):
        moved = [_advance(run, reports) for run in runs]
        met = _meet(runs, mesh, private)
        if not any(moved) and not met:
            raise _stuck(runs, mesh)
    reports.close()
    return [run.outputs for run in runs]


# --- one rank -----------------------------------------------------------------------------------


def operand_ends(graph: fx.Graph) -> dict[fx.Node, tuple[str, int, fx.Node]]:
    """The last nodes of redistributions: the step, the position of the operand, and the node that is redistributed."""
    ends: dict[fx.Node, tuple[str, int, fx.Node]] = {}
    sources: dict[tuple[str, int], fx.Node] = {}
    for node in graph.nodes:
        key = _operand_of(node)
        if key is None or node.op == "get_attr":
            continue
        for read in node.all_input_nodes:
            if _operand_of(read) != key:
                sources.setdefault(key, read)
        if key in sources and any(_operand_of(user) != key for user in node.users):
            ends[node] = (*key, sources[key])
    return ends


def _operand_of(node: fx.Node) -> tuple[str, int] | None:
    if "spmd_operand" not in node.meta:
        return None
    return node.meta["spmd_step"], node.meta["spmd_operand"]


class _Plan:
    """What ranks that share a graph need to know of it."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.nodes = tuple(module.graph.nodes)
        self.ends = operand_ends(module.graph)
        self.mutates = any(node.op == "call_function" and is_mutating(node.target) for node in self.nodes)
        self.frees = self._last_uses()

    def _last_uses(self) -> dict[fx.Node, list[fx.Node]]:
        """The values that are not needed after each node."""
        last: dict[fx.Node, fx.Node] = {}
        for node in self.nodes:
            last[node] = node
            for read in node.all_input_nodes:
                last[read] = node
            if node in self.ends:
                last[self.ends[node][2]] = node
        frees: dict[fx.Node, list[fx.Node]] = {}
        for value, user in last.items():
            frees.setdefault(user, []).append(value)
        return frees


class _Run:
    """The run of one rank, as far as it has come."""

    def __init__(self, rank: int, plan: _Plan, inputs: Sequence[torch.Tensor]) -> None:
        self.rank = rank
        self.outputs: tuple[Any, ...] = ()
        self.finished = False
        self.waiting: _Meeting | None = None
        self._answer: torch.Tensor | None = None
        self._steps = _steps(rank, plan, inputs)

    def resume(self) -> _Report | None:
        """Go on until there is something to report, the group has to be met, or the end is reached."""
        answer, self._answer = self._answer, None
        try:
            event = self._steps.send(answer)
        except StopIteration as end:
            self.finished, self.outputs = True, end.value
            return None
        if isinstance(event, _Meeting):
            self.waiting = event
            return None
        return event

    def receive(self, result: torch.Tensor) -> None:
        """Take what the group has made."""
        self.waiting, self._answer = None, result


def _steps(
    rank: int, plan: _Plan, inputs: Sequence[torch.Tensor]
) -> Generator[_Meeting | _Report, torch.Tensor | None, tuple[Any, ...]]:
    """Run one graph node by node, stopping at what concerns other ranks."""
    held: dict[fx.Node, Any] = {}
    given = iter(inputs)
    for node in plan.nodes:
        step = node.meta.get("spmd_step")
        if node.op == "output":
            outputs = fx.map_arg(node.args[0], held.__getitem__)
            return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
        if node.op == "placeholder":
            held[node] = next(given)
        elif node.op == "call_function" and is_collective(node.target):
            tensor, request = request_of(node.target, *_arguments(node, held))
            held[node] = yield _Meeting(step, request, tensor)
        else:
            held[node] = _computed(rank, plan.module, node, held)
        if node in plan.ends:
            name, index, source = plan.ends[node]
            yield _Report(("operand", name, index), (held[source], held[node]))
        if "spmd_value" in node.meta and node.op != "placeholder":
            yield _Report(("value", node.meta["spmd_value"]), (held[node],))
        for done in plan.frees.get(node, ()):
            del held[done]
    return ()


def _arguments(node: fx.Node, held: dict[fx.Node, Any]) -> tuple[Any, Any]:
    return fx.map_arg(node.args, held.__getitem__), fx.map_arg(node.kwargs, held.__getitem__)


def _computed(rank: int, module: fx.GraphModule, node: fx.Node, held: dict[fx.Node, Any]) -> Any:  # noqa: ANN401
    """What a node that concerns this rank alone computes."""
    target: Any = node.target
    args, kwargs = _arguments(node, held)
    try:
        if node.op == "get_attr":
            value: Any = module
            for part in target.split("."):
                value = getattr(value, part)
            return value
        if node.op == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        if node.op == "call_module":
            return module.get_submodule(target)(*args, **kwargs)
        return args[0] if target is WAIT else target(*args, **kwargs)
    except SpmdLabError:
        raise
    except Exception as error:
        what = f"rank {rank} cannot run {target}: {str(error).strip().splitlines()[0] if str(error) else error!r}"
        hint = "compare the local shapes that reach it with those that it needs"
        raise SimulationError(what, node.meta.get("spmd_step"), rank, hint) from error


# --- all ranks ----------------------------------------------------------------------------------


class _Reports:
    """Gathers what ranks report, and passes it on once all of them have."""

    def __init__(self, ranks: int, observer: Observer) -> None:
        self._ranks = ranks
        self._observer = observer
        self._gathered: dict[tuple[object, ...], dict[int, tuple[Any, ...]]] = {}
        self._times: list[Counter[tuple[object, ...]]] = [Counter() for _ in range(ranks)]

    def add(self, rank: int, report: _Report) -> None:
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


def _advance(run: _Run, reports: _Reports) -> bool:
    """Let a rank go on to its next report, unless it waits or has finished."""
    if run.finished or run.waiting is not None:
        return False
    report = run.resume()
    if report is not None:
        reports.add(run.rank, report)
    return True


def _meet(runs: Sequence[_Run], mesh: Mesh, private: bool) -> bool:
    """Carry out the collectives whose groups are complete."""
    met = False
    for run in runs:
        if run.waiting is None:
            continue
        members = [runs[rank] for rank in _group(run, mesh)]
        meetings = [member.waiting for member in members if member.waiting is not None]
        if len(meetings) < len(members) or any(meeting.request.axis != run.waiting.request.axis for meeting in meetings):
            continue
        results = _carried_out(members, meetings)
        for member, result in zip(members, results, strict=True):
            member.receive(result.clone() if private else result)
        met = True
    return met


def _group(run: _Run, mesh: Mesh) -> tuple[int, ...]:
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


def _carried_out(members: Sequence[_Run], meetings: Sequence[_Meeting]) -> list[torch.Tensor]:
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


def _stuck(runs: Sequence[_Run], mesh: Mesh) -> SimulationError:
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
