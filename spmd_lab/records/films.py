"""An expansion as a film: what each stage does with each step, in the order of the program."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from spmd_lab.progress import progress
from spmd_lab.records.code import code_record, global_comment
from spmd_lab.records.expansions import expansion_record
from spmd_lab.records.layouts import layout_record
from spmd_lab.records.steps import step_record
from spmd_lab.show.film_records import FilmRecord, FrameRecord, HoldingRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import fx

    from spmd_lab.expand.expansion import Expansion
    from spmd_lab.expand.values import Step
    from spmd_lab.layout import Layout
    from spmd_lab.show.part_records import CodeLine

__all__ = ["film_record"]

_AROUND, _STATEMENTS, _RANKS = 3, 40, 64


def film_record(expansion: Expansion, seen: Mapping[str, Sequence[str]] | None = None) -> FilmRecord:
    """A film of an expansion.

    Parameters
    ----------
    expansion : Expansion
        What to film.
    seen : mapping of str to sequence of str, optional
        By the name of a value, its numbers on each rank, as text.
    """
    traced = _Statements(expansion.traced.graph_module.graph, expansion)
    program = _Statements(expansion.program.graph_module.graph, expansion)
    own = _own_statements(program.nodes)
    parts = _parts(traced.nodes)
    readers = _first_readers(expansion.steps)
    frames = []
    sent = 0
    for step in progress(expansion.steps, f"filming {expansion.name}", len(expansion.steps)):
        sent += sum(each.sent_bytes_per_rank for each in step.collectives)
        at = traced.position(readers.get(step.name, step.name))
        first, last = own.get(step.name, (0, 0))
        start = max(0, at - _AROUND)
        record = step_record(step)
        frames.append(
            FrameRecord(
                step=record,
                phase="resolve" if step.op == "resolve" else step.phase,
                module=step.source.module if step.source is not None else "",
                traced=traced.lines[start : at + _AROUND + 1],
                at=at - start,
                holdings=_holdings(step, parts.get(step.name, {}), seen or {}),
                local=record.graph.lines[:_STATEMENTS] if record.graph is not None else (),
                spliced=program.lines[first:last][:_STATEMENTS],
                before=first,
                sent_bytes=sent,
            )
        )
    overview = expansion_record(expansion, modules=False)
    return FilmRecord(overview, tuple(frames), expansion.mesh.size, len(program.lines))


def _first_readers(steps: Sequence[Step]) -> dict[str, str]:
    """For a step that gathers a parameter, the one that first reads it: it has no statement of its own in the trace."""
    found: dict[str, str] = {}
    for step in steps:
        for operand in step.operands:
            found.setdefault(operand.name, step.name)
    return {step.name: found[step.name] for step in steps if step.op == "gather"}


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
        self.nodes = [node for node in graph.nodes if node.op in ("call_function", "get_attr")]
        self._positions = {node.name: position for position, node in enumerate(self.nodes)}

    def position(self, name: str) -> int:
        """Where a node stands; a resolved output stands behind all."""
        return self._positions.get(name, len(self.lines) - 1)


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


def _shapes(layout: Layout) -> tuple[str, ...]:
    """The local shape on every rank; that of rank 0 where all are alike, or where ranks are too many to list."""
    if not layout.uneven_axes or layout.mesh.size > _RANKS:
        return (str(list(layout.local_shape(0))),)
    return tuple(str(list(layout.local_shape(rank))) for rank in range(layout.mesh.size))
