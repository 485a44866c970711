"""Which part of a graph is drawn."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING

from spmd_lab.errors import ArgumentError
from spmd_lab.expand.values import Step
from spmd_lab.rebuild import Program
from spmd_lab.records.graphs import read_from, step_graph_record, traced_graph_record
from spmd_lab.records.program_graphs import program_graph_record
from spmd_lab.show.graph_selection import around as _around
from spmd_lab.show.graph_selection import bounded, collectives_alone, folded
from spmd_lab.trace.values import TracedGraph

if TYPE_CHECKING:
    from spmd_lab.drawn import Drawn
    from spmd_lab.show.part_records import GraphRecord

__all__ = ["graph_record", "selected"]


@singledispatch
def graph_record(value: object) -> GraphRecord:
    """The whole graph of a value."""
    raise TypeError(f"no graph of a {type(value).__name__}")


graph_record.register(Step)(step_graph_record)
graph_record.register(TracedGraph)(traced_graph_record)
graph_record.register(Program)(program_graph_record)


def selected(value: Drawn, depth: int | None, around: str | None, hops: int, only: str | None) -> GraphRecord:
    """The part of a graph that is asked for, at most as large as can be drawn.

    Raises
    ------
    ArgumentError
        If there is no node to look around, or a number or a choice is none.
    """
    record = graph_record(value)
    if only not in (None, "collectives"):
        raise ArgumentError(f"there is no part called {only!r}", argument=f"only={only!r}", hint='only="collectives"')
    if (depth is not None and depth < 1) or hops < 0:
        raise ArgumentError("too small a number", argument=f"depth={depth}, hops={hops}", hint="depth=1, hops=1")
    if around is not None:
        record = _around(record, _node_name(value, around), hops)
    if only is not None:
        record = collectives_alone(record)
    if depth is not None:
        record = folded(record, depth)
    return bounded(record)


def _node_name(value: Drawn, name: str) -> str:
    """A node of a program is meant by the name of its step, too: the last node of it that is drawn."""
    if not isinstance(value, Program):
        return name
    nodes = list(value.graph_module.graph.nodes)
    if any(node.name == name for node in nodes):
        return name
    own = [read_from(node).name for node in nodes if node.meta.get("spmd_step") == name]
    return own[-1] if own else name
