"""Which part of a graph is drawn, and where."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatch
from typing import TYPE_CHECKING

from spmd_lab.errors import ArgumentError
from spmd_lab.expand.values import Step
from spmd_lab.rebuild import Program
from spmd_lab.records.graphs import read_from, step_graph_record, traced_graph_record
from spmd_lab.records.program_graphs import program_graph_record, traced_names
from spmd_lab.show.graph_beside import beside, frame_of
from spmd_lab.show.graph_folding import VISIBLE, fitting, folded
from spmd_lab.show.graph_selection import among, around, collectives_alone, cut
from spmd_lab.show.graph_spans import as_light_as, lightened
from spmd_lab.trace.values import TracedGraph

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spmd_lab.drawn import Drawn
    from spmd_lab.show.graph_records import GraphRecord

__all__ = ["Part", "drawing", "graph_record"]


@dataclass(frozen=True)
class Part:
    """What of a graph is drawn: see `Drawn.draw`.

    Raises
    ------
    ArgumentError
        If a number is too small, or there is no such choice.
    """

    depth: int | None = None
    around: str | None = None
    hops: int = 1
    only: str | None = None
    once: bool = True

    def __post_init__(self) -> None:
        if self.only not in (None, "collectives"):
            given = f"only={self.only!r}"
            raise ArgumentError(f"there is no part called {self.only!r}", argument=given, hint='only="collectives"')
        if (self.depth is not None and self.depth < 1) or self.hops < 0:
            given = f"depth={self.depth}, hops={self.hops}"
            raise ArgumentError("too small a number", argument=given, hint="depth=1, hops=1")

    def of(self, record: GraphRecord, name: str | None) -> GraphRecord:
        """The part of a graph, in which the node to look around has this name."""
        if name is not None:
            record = around(record, name, self.hops)
        return record if self.only is None else collectives_alone(record)


@singledispatch
def graph_record(value: object) -> GraphRecord:
    """The whole graph of a value."""
    raise TypeError(f"no graph of a {type(value).__name__}")


graph_record.register(Step)(step_graph_record)
graph_record.register(TracedGraph)(traced_graph_record)
graph_record.register(Program)(program_graph_record)


def drawing(value: Drawn, part: Part, program: Program | None = None) -> GraphRecord:
    """A part of a graph, as the record of its picture.

    Parameters
    ----------
    value : Drawn
        The graph.
    part : Part
        What of it is drawn.
    program : Program, optional
        For a trace: that from whose picture its nodes take their places.

    Raises
    ------
    ArgumentError
        If there is no node to look around, or the program is of another trace.
    """
    if program is not None and (not isinstance(value, TracedGraph) or program.expansion.traced is not value):
        told = "only a trace is drawn beside a program, and only beside its own"
        raise ArgumentError(told, argument="beside", hint="expansion.traced.draw(beside=expansion.program)")
    if isinstance(value, Program):
        _, shown, frame = _trace_and_program(value, part)
    elif program is not None:
        shown, _, frame = _trace_and_program(program, part)
    else:
        shown = frame = part.of(graph_record(value), part.around)
    how = fitting(frame, part.depth, part.once and part.around is None)
    placed = lightened(cut(folded(frame, how), VISIBLE))
    drawn = as_light_as(among(folded(shown, how), {node.key for node in placed.nodes}), placed)
    hidden = among(placed, {"hidden"}).nodes
    alt = "; ".join([drawn.alt, *(node.lines[0] for node in hidden)])
    return replace(drawn, alt=alt, nodes=(*drawn.nodes, *hidden), frame=placed)


def _trace_and_program(program: Program, part: Part) -> tuple[GraphRecord, GraphRecord, GraphRecord]:
    """The same part of a trace and of its program, and a picture with room for both."""
    names = traced_names(program)
    traced, whole = traced_graph_record(program.expansion.traced), program_graph_record(program)
    name = _node_name(program, names, part.around)
    own = next((key for key, other in names.items() if other == name), None)
    other = part.of(whole, name)
    one = beside(among(traced, ()) if name and own is None else part.of(traced, own), other, names)
    return one, other, frame_of(one, other)


def _node_name(program: Program, names: Mapping[str, str], name: str | None) -> str | None:
    """A node of a program, which may be meant by the name of its step: of a resolved output, the last node."""
    if name is None or name in names:
        return names[name] if name else None
    nodes = program.graph_module.graph.nodes
    own = [read_from(node).name for node in nodes if name in (node.name, node.meta.get("spmd_step"))]
    return own[-1] if own else name
