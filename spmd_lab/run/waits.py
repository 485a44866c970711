"""From the clocks of ranks to a profile: which rank came last to each collective, and who waited for it."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from spmd_lab.collectives import WAIT, is_collective
from spmd_lab.prove.collectives import request_of
from spmd_lab.run.profile import NodeTime, Profile, RankTime, Straggler

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import fx

    from spmd_lab.mesh import Mesh
    from spmd_lab.run.profile import Kind
    from spmd_lab.run.program_requests import ProgramRequest
    from spmd_lab.run.timed_run import Measured

__all__ = ["profile_of"]

_LATE = 0.1
"""The part of a run that others wait for one rank, beyond what it waits for them, from which on it is named."""


def profile_of(request: ProgramRequest, measured: Sequence[Measured], found: str, phases: Mapping[str, str]) -> Profile:
    """Say of what ranks have measured who waited for whom.

    Parameters
    ----------
    request : ProgramRequest
        What was run.
    measured : sequence of Measured
        What each rank measured.
    found : str
        What they ran on, in words.
    phases : mapping of str to str
        Forward or backward, by step.
    """
    program = request.program
    graphs = [_Graph(program.for_rank(rank)) for rank in range(program.mesh.size)]
    one_clock = len({each.machine for each in measured}) == 1
    runs = [_Run(program.mesh, graphs, measured, repeat, one_clock) for repeat in range(len(measured[0].timings))]
    shown = sorted(runs, key=lambda run: run.length)[(len(runs) - 1) // 2]
    nodes = []
    for rank, graph in enumerate(graphs):
        for position, node in enumerate(graph.nodes):
            if node.op in ("placeholder", "output", "get_attr"):
                continue
            step = node.meta.get("spmd_step", "")
            lasts = Counter(run.last[rank, position] for run in runs if (rank, position) in run.last)
            nodes.append(
                NodeTime(
                    rank=rank,
                    node=node.name,
                    step=step,
                    op=str(node.target).removesuffix(".default"),
                    phase=phases.get(step, ""),
                    line=request.lines.get(step, ""),
                    kind=graph.kinds[position],
                    collective=graph.collectives.get(position, ""),
                    start_us=shown.start(rank, position) / 1000,
                    time_us=_median(run.time(rank, position) for run in runs),
                    shown_us=shown.time(rank, position) / 1000,
                    waited_us=_median(run.waited.get((rank, position), 0) for run in runs),
                    last_rank=lasts.most_common(1)[0][0] if lasts else None,
                )
            )
    ranks = tuple(_rank_time(rank, graph, runs) for rank, graph in enumerate(graphs))
    return Profile(
        program.name, program.mesh, found, len(runs), ranks, tuple(nodes), _straggler(ranks, nodes, request.lines)
    )


class _Graph:
    """What the nodes of a rank's graph are, by position; ``parts``: where a collective starts and is waited for."""

    def __init__(self, graph: fx.GraphModule) -> None:
        self.nodes = list(graph.graph.nodes)
        places = {node: position for position, node in enumerate(self.nodes)}
        self.kinds: list[Kind] = []
        self.collectives: dict[int, str] = {}
        self.parts: dict[int, list[int]] = {}
        self.meetings: dict[str, list[int]] = defaultdict(list)
        for position, node in enumerate(self.nodes):
            kind: Kind = "compute"
            if is_collective(node):
                kind, request = "issue", request_of(node.target, node.args, node.kwargs)[1]
                self.collectives[position], self.parts[position] = str(request), [position]
                self.meetings[request.axis].append(position)
            elif node.target is WAIT and places[node.args[0]] in self.collectives:
                kind, start = "wait", places[node.args[0]]
                self.collectives[position] = self.collectives[start]
                self.parts[start].append(position)
            self.kinds.append(kind)


class _Run:
    """One run of all ranks, in nanoseconds from when they had met."""

    def __init__(
        self, mesh: Mesh, graphs: Sequence[_Graph], measured: Sequence[Measured], repeat: int, one_clock: bool
    ) -> None:
        self._timings = [each.timings[repeat] for each in measured]
        met = [each.met_ns for each in self._timings]
        self._origins = [min(met)] * len(met) if one_clock else met
        self.length = max(self.run(rank) for rank in range(len(graphs)))
        self.waited: dict[tuple[int, int], int] = {}
        self.last: dict[tuple[int, int], int] = {}
        self.kept_waiting: Counter[int] = Counter()
        axes = [axis for axis in mesh.axes if any(graph.meetings[axis] for graph in graphs)]
        for axis in axes:
            for group in sorted({mesh.group(rank, axis) for rank in range(len(graphs))}):
                for meeting in zip(*(graphs[rank].meetings[axis] for rank in group), strict=True):
                    self._meet(graphs, dict(zip(group, meeting, strict=True)))

    def _meet(self, graphs: Sequence[_Graph], issues: Mapping[int, int]) -> None:
        """One collective of a group, given where it starts in the graph of each of its ranks."""
        comes = {rank: self.start(rank, position) for rank, position in issues.items()}
        last = max(comes, key=comes.__getitem__)
        longest = 0
        for rank, issue in issues.items():
            parts = graphs[rank].parts[issue]
            for position in parts:
                until = min(self.end(rank, position), comes[last])
                self.waited[rank, position] = max(until - self.start(rank, position), 0)
                self.last[rank, position] = last
            longest = max(longest, sum(self.waited[rank, position] for position in parts))
        self.kept_waiting[last] += longest

    def start(self, rank: int, position: int) -> int:
        return self._timings[rank].starts_ns[position] - self._origins[rank]

    def end(self, rank: int, position: int) -> int:
        return self._timings[rank].ends_ns[position] - self._origins[rank]

    def time(self, rank: int, position: int) -> int:
        return self.end(rank, position) - self.start(rank, position)

    def run(self, rank: int) -> int:
        return self._timings[rank].ends_ns[-1] - self._timings[rank].starts_ns[0]


def _rank_time(rank: int, graph: _Graph, runs: Sequence[_Run]) -> RankTime:
    def of(kind: Kind) -> float:
        positions = [position for position, each in enumerate(graph.kinds) if each == kind]
        return _median(sum(run.time(rank, position) for position in positions) for run in runs)

    return RankTime(
        rank=rank,
        run_us=_median(run.run(rank) for run in runs),
        compute_us=of("compute"),
        issue_us=of("issue"),
        wait_us=of("wait"),
        waited_us=_median(sum(time for (each, _), time in run.waited.items() if each == rank) for run in runs),
        kept_waiting_us=_median(run.kept_waiting[rank] for run in runs),
    )


def _straggler(ranks: Sequence[RankTime], nodes: Sequence[NodeTime], lines: Mapping[str, str]) -> Straggler | None:
    worst = max(ranks, key=lambda each: each.kept_waiting_us - each.waited_us)
    run_us = max(max(each.run_us for each in ranks), 1e-9)
    if (worst.kept_waiting_us - worst.waited_us) / run_us < _LATE:  # ranks that wait in turns are all as late
        return None
    times: dict[str, dict[int, float]] = defaultdict(lambda: dict.fromkeys(range(len(ranks)), 0.0))
    for node in nodes:
        if node.kind == "compute":
            times[node.step][node.rank] += node.time_us
    excess = {
        step: found[worst.rank] - statistics.median(time for rank, time in found.items() if rank != worst.rank)
        for step, found in times.items()
    }
    step = max(excess, key=excess.__getitem__, default="")
    return Straggler(
        worst.rank,
        worst.kept_waiting_us,
        worst.kept_waiting_us / run_us,
        step,
        lines.get(step, ""),
        excess.get(step, 0.0),
    )


def _median(nanoseconds: Iterable[int]) -> float:
    """A median, in microseconds."""
    return float(statistics.median(nanoseconds)) / 1000
