"""Runs a rank's graph and keeps what a proof wants to see of it: values, and operands before and after they move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from spmd_lab.collectives import WAIT, is_collective
from spmd_lab.prove.one_rank import Plan, Report
from spmd_lab.prove.reference import cuda_devices, memory_filled
from spmd_lab.run.named_run import NamedRun
from spmd_lab.run.rank_work import carried_to_cpu, prepared

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import fx

    from spmd_lab.saving import SavedProgram

__all__ = ["ObservedWork", "Watch", "watches_of"]


@dataclass(frozen=True)
class Watch:
    """Something to report once a node has run.

    Parameters
    ----------
    key : tuple
        What it is, as `spmd_lab.prove` names it.
    source : str or None
        The node that held an operand before it moved.
    """

    key: tuple[object, ...]
    source: str | None = None


@dataclass(frozen=True)
class ObservedWork:
    """A run of a program on one rank's flat inputs, from a known state of random numbers."""

    program: SavedProgram
    flat: Sequence[torch.Tensor]
    lines: Mapping[str, str]
    watches: Sequence[Mapping[str, Sequence[Watch]]]
    seed: int

    def __call__(self) -> tuple[tuple[Report, ...], tuple[Any, ...]]:
        """Run it: what was seen, in order, and the flat outputs."""
        graph, flat = prepared(self.program, self.flat)
        rank = torch.distributed.get_rank()
        with torch.no_grad(), torch.random.fork_rng(cuda_devices(flat)), memory_filled():
            torch.manual_seed(self.seed)
            run = _ObservedRun(graph, self.lines, self.watches[rank % len(self.watches)])
            outputs = tuple(run.run(*[value.clone() for value in flat]))
        return tuple(run.told), carried_to_cpu(outputs)


def watches_of(graph: fx.GraphModule) -> dict[str, tuple[Watch, ...]]:
    """What a proof wants to see of a graph, by the name of the node after which it is there."""
    plan = Plan(graph)
    found: dict[str, tuple[Watch, ...]] = {}
    for node in plan.nodes:
        watched: list[Watch] = []
        if node in plan.ends:
            step, index, source = plan.ends[node]
            watched.append(Watch(("operand", step, index), source.name))
        if "spmd_value" in node.meta and node.op != "placeholder":
            watched.append(Watch(("value", node.meta["spmd_value"])))
        if watched:
            found[node.name] = tuple(watched)
    return found


class _ObservedRun(NamedRun):
    """The run of a graph that keeps copies of what is watched."""

    def __init__(self, graph: fx.GraphModule, lines: Mapping[str, str], watched: Mapping[str, Sequence[Watch]]) -> None:
        super().__init__(graph, lines)
        self.garbage_collect_values = False  # an operand may be read last long before it has moved
        self.told: list[Report] = []
        self._watched = watched
        self._nodes = {node.name: node for node in graph.graph.nodes}

    def run_node(self, n: fx.Node) -> Any:
        """Run one node."""
        made = super().run_node(n)
        for watch in self._watched.get(n.name, ()):
            held: tuple[Any, ...] = (_settled(n, made),)
            if watch.source is not None:
                source = self._nodes[watch.source]
                held = (_settled(source, self.env[source]), *held)
            self.told.append(Report(watch.key, held))
        return made


def _settled(node: fx.Node, value: Any) -> Any:
    """A copy on the CPU, once it is there: what comes later may write into it."""
    if not isinstance(value, torch.Tensor):
        return value
    return (WAIT(value) if is_collective(node) else value).detach().cpu().clone()
