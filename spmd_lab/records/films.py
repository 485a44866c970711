"""An expansion as a film: what each stage does with each step, in the order of the program."""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import TYPE_CHECKING

from spmd_lab.progress import progress
from spmd_lab.records.code import code_record, global_comment
from spmd_lab.records.expansions import expansion_record
from spmd_lab.records.film_nodes import local_nodes, returned_values
from spmd_lab.records.layouts import layout_record
from spmd_lab.records.steps import graph_record, step_record
from spmd_lab.show.film_records import FilmRecord, FrameRecord, HoldingRecord, TracedNodeRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import fx

    from spmd_lab.expand.expansion import Expansion
    from spmd_lab.expand.values import Step
    from spmd_lab.layout import Layout
    from spmd_lab.show.film_records import LocalNodeRecord
    from spmd_lab.show.part_records import CodeLine

__all__ = ["film_record"]

_AROUND, _STATEMENTS = 3, 40


def film_record(expansion: Expansion, seen: Mapping[str, Sequence[str]] | None = None) -> FilmRecord:
    """A film of an expansion.

    Parameters
    ----------
    expansion : Expansion
        What to film.
    seen : mapping of str to sequence of str, optional
        By the name of a value, its numbers on each rank, as text.
    """
    camera = _Camera(expansion, seen or {})
    steps = progress(expansion.steps, f"filming {expansion.name}", len(expansion.steps))
    frames = tuple(camera.frame(step) for step in steps)
    overview = expansion_record(expansion, modules=False)
    return FilmRecord(overview, frames, expansion.mesh.size, len(camera.program.lines))


class _Camera:
    """Goes through an expansion; it knows both programs as statements."""

    def __init__(self, expansion: Expansion, seen: Mapping[str, Sequence[str]]) -> None:
        self.expansion = expansion
        self.seen = seen
        self.traced = _Statements(expansion.traced.graph_module.graph, expansion)
        self.program = _Statements(expansion.program.graph_module.graph, expansion)
        self.own = _own_statements(self.program.nodes)
        self.parts = _parts(self.traced.nodes)
        self.places = self._places()
        places = {step.name: place for place, step in enumerate(expansion.steps)}
        producers = {part: name for name, parts in self.parts.items() for part in parts.values()}
        self.frames_of = [places.get(producers.get(node.name, node.name), -1) for node in self.traced.nodes]
        self.sent = 0

    def _places(self) -> dict[str, int]:
        """Where each step stands in the trace; one that has no node there stands before the next that has."""
        found: dict[str, int] = {}
        following = len(self.traced.lines)
        for step in reversed(self.expansion.steps):
            following = found[step.name] = self.traced.positions.get(step.name, following)
        return found

    def frame(self, step: Step) -> FrameRecord:
        """The next frame: steps come in their order."""
        self.sent += sum(each.sent_bytes_per_rank for each in step.collectives)
        at = self.places[step.name]
        first, last = self.own.get(step.name, (0, 0))
        last = min(last, first + _STATEMENTS)
        start = max(0, at - _AROUND)
        around = slice(start, at + _AROUND + 1)
        return FrameRecord(
            step=step_record(step, graph=False, picture=_has_way(step)),
            phase="resolve" if step.op == "resolve" else step.phase,
            module=step.source.module if step.source is not None else "",
            traced=tuple(map(TracedNodeRecord, self.traced.lines[around], self.frames_of[around])),
            at=at - start,
            is_traced=step.name in self.traced.positions,
            holdings=_holdings(step, self.parts.get(step.name, {}), self.seen),
            local=self._local(step),
            spliced=local_nodes(
                step, self.program.nodes[first:last], self.program.lines[first:last], self._values(step, first, last)
            ),
            before=first,
            sent_bytes=self.sent,
        )

    def _local(self, step: Step) -> tuple[LocalNodeRecord, ...]:
        graph = step.local_graph.graph
        nodes = _with_statements(graph)[:_STATEMENTS]
        lines = graph_record(step, graph).lines[:_STATEMENTS]
        return local_nodes(step, nodes, lines, returned_values(step, self.parts.get(step.name, {}), graph))

    def _values(self, step: Step, first: int, last: int) -> dict[fx.Node, tuple[str, Layout]]:
        """What the nodes of a step in the program hold."""
        resolved = step.outputs[0] if step.op == "resolve" else None
        if resolved is not None:
            return dict.fromkeys(self.program.nodes[first:last][-1:], (step.name, resolved))
        held = {node: str(node.meta.get("spmd_value", "")) for node in self.program.nodes[first:last]}
        layouts = self.expansion.layouts
        return {node: (name, layouts[name]) for node, name in held.items() if name in layouts}


def _has_way(step: Step) -> bool:
    """Whether an operand of a step has to be brought to where it is needed, or ranks communicate in it."""
    return bool(step.collectives) or any(each.redistribution is not None for each in step.operands)


class _Statements:
    """A graph as statements, and where each node stands among them."""

    def __init__(self, graph: fx.Graph, expansion: Expansion) -> None:
        described = [node for node in graph.nodes if node.op == "placeholder"]
        returned = next(node for node in reversed(graph.nodes) if node.op == "output").args[0]
        record = code_record(
            graph,
            expansion.name,
            global_comment,
            [("", "")] * len(described),
            [("", "", "")] * len(returned),
            expansion.mesh,
        )
        self.lines: tuple[CodeLine, ...] = record.lines
        self.nodes = _with_statements(graph)
        self.positions = {node.name: position for position, node in enumerate(self.nodes)}


def _with_statements(graph: fx.Graph) -> list[fx.Node]:
    """The nodes that are statements of its code."""
    return [node for node in graph.nodes if node.op in ("call_function", "get_attr")]


def _own_statements(nodes: Sequence[fx.Node]) -> dict[str, tuple[int, int]]:
    """The statements of each step in a program: where they begin, and one past their end."""
    found: dict[str, tuple[int, int]] = {}
    for position, node in enumerate(nodes):
        step = node.meta.get("spmd_step")
        if step is not None:
            found[step] = (found.get(step, (position, 0))[0], position + 1)
    return found


def _parts(nodes: Sequence[fx.Node]) -> dict[str, dict[int, str]]:
    """For a node with several outputs, the name under which each is read."""
    found: dict[str, dict[int, str]] = {}
    for node in nodes:
        if node.target is operator.getitem:
            producer, position = node.args
            found.setdefault(str(producer), {})[int(str(position))] = node.name
    return found


def _holdings(step: Step, parts: Mapping[int, str], seen: Mapping[str, Sequence[str]]) -> tuple[HoldingRecord, ...]:
    """What ranks hold before and after a step."""
    held = [(each.name, each.name, each.have) for each in step.operands]
    for position, layout in enumerate(step.outputs):
        name = parts.get(position, step.name)
        if layout is not None and (not parts or position in parts):
            held.append((f"-> {name}", name, layout))
    return tuple(
        HoldingRecord(title, layout_record(layout), _shapes(layout), tuple(seen.get(name, ())))
        for title, name, layout in dict.fromkeys(held)
    )


@lru_cache(maxsize=1024)
def _shapes(layout: Layout) -> tuple[str, ...]:
    """The local shape on every rank; that of rank 0 where all are alike."""
    ranks = range(layout.mesh.size if layout.uneven_axes else 1)
    return tuple(str(list(layout.local_shape(rank))) for rank in ranks)
