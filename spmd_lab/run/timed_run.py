"""Runs a rank's graph against the clock, node by node; nothing is added between nodes, so that waits are seen."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from spmd_lab.collectives import is_collective
from spmd_lab.run.named_run import NamedRun
from spmd_lab.run.rank_work import carried_to_cpu, prepared

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import fx

    from spmd_lab.saving import SavedProgram

__all__ = ["Measured", "MeasuredWork", "Timing", "measured"]


@dataclass(frozen=True)
class Timing:
    """One run of one rank, in nanoseconds of its machine's clock.

    Parameters
    ----------
    met_ns : int
        When the ranks had met, just before.
    starts_ns, ends_ns : tuple of int
        By the position of the node in the rank's graph.
    """

    met_ns: int
    starts_ns: tuple[int, ...]
    ends_ns: tuple[int, ...]


@dataclass(frozen=True)
class Measured:
    """What one rank made of a program, and how long each node took.

    Parameters
    ----------
    machine : str
        Where it ran.
    device : str
        "cpu" or "cuda".
    outputs : tuple
        Of the last run.
    timings : tuple of Timing
        One for each run that counts.
    moved_bytes : tuple of int
        By position: the larger of what a collective takes and gives, 0 for other nodes.
    """

    machine: str
    device: str
    outputs: tuple[Any, ...]
    timings: tuple[Timing, ...]
    moved_bytes: tuple[int, ...]


@dataclass(frozen=True)
class MeasuredWork:
    """Runs of a program on one rank's flat inputs; the first ones do not count."""

    program: SavedProgram
    flat: Sequence[torch.Tensor]
    lines: Mapping[str, str]
    repeats: int
    first_ones: int
    with_outputs: bool

    def __call__(self) -> Measured:
        """Run them."""
        graph, flat = prepared(self.program, self.flat)
        return measured(graph, flat, self.lines, self.repeats, self.first_ones, self.with_outputs)


def measured(
    graph: fx.GraphModule,
    flat: Sequence[torch.Tensor],
    lines: Mapping[str, str],
    repeats: int = 1,
    first_ones: int = 0,
    with_outputs: bool = True,
) -> Measured:
    """Run a graph that is bound to real groups; ranks meet before each run, and nowhere else but in its collectives.

    Parameters
    ----------
    graph : torch.fx.GraphModule
        The graph of this rank.
    flat : sequence of torch.Tensor
        Its inputs, on its device; each run gets copies of its own.
    lines : mapping of str to str
        The user's line of each step.
    repeats, first_ones : int
        How many runs count, and how many before them do not.
    with_outputs : bool
        Whether to keep what the last run gives.
    """
    device = "cuda" if any(value.is_cuda for value in flat) else "cpu"
    run = _TimedRun(graph, lines, device == "cuda")
    timings, outputs = [], ()
    with torch.no_grad():
        for repeat in range(first_ones + repeats):
            copies = [value.clone() for value in flat]
            dist.barrier()
            run.start(perf_counter_ns())
            outputs = tuple(run.run(*copies))
            if repeat >= first_ones:
                timings.append(run.timing)
    kept = carried_to_cpu(outputs) if with_outputs else ()
    return Measured(socket.gethostname(), device, kept, tuple(timings), tuple(run.moved))


class _TimedRun(NamedRun):
    """The run of a graph against the clock; on a GPU, every node is waited for."""

    def __init__(self, graph: fx.GraphModule, lines: Mapping[str, str], synchronize: bool) -> None:
        super().__init__(graph, lines)
        self._synchronize = synchronize
        self.start(0)

    def start(self, met_ns: int) -> None:
        """Forget the last run."""
        self._met, self._starts, self._ends = met_ns, list[int](), list[int]()
        self.moved: list[int] = []

    @property
    def timing(self) -> Timing:
        """The last run."""
        return Timing(self._met, tuple(self._starts), tuple(self._ends))

    def run_node(self, n: fx.Node) -> Any:
        """Run one node."""
        self._starts.append(perf_counter_ns())
        made = super().run_node(n)
        if self._synchronize:
            torch.cuda.synchronize()
        self._ends.append(perf_counter_ns())
        self.moved.append(self._bytes(n, made) if is_collective(n) else 0)
        return made

    def _bytes(self, node: fx.Node, made: torch.Tensor) -> int:
        tensors = [made, *(self.env[each] for each in node.all_input_nodes if each in self.env)]
        return max(int(each.nbytes) for each in tensors)
