"""A step as a record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.records.code import code_record, global_comment
from spmd_lab.records.collectives import collective_record
from spmd_lab.records.graphs import step_graph_record
from spmd_lab.records.layouts import axis_span, layout_record, line_record
from spmd_lab.show.part_records import CodeRecord, MoveRecord, OperandRecord
from spmd_lab.show.value_records import BriefRecord, StepRecord

if TYPE_CHECKING:
    from torch import fx

    from spmd_lab.expand.values import Move, Operand, Step

__all__ = ["brief_record", "graph_record", "step_record"]


def step_record(step: Step, graph: bool = True, picture: bool = False) -> StepRecord:
    """A step, with its dispatch subgraph as code and as a picture where these are wanted."""
    return StepRecord(
        name=step.name,
        op=step.op,
        line=line_record(step.source),
        phase=step.phase,
        operands=tuple(_operand_record(step, operand) for operand in step.operands),
        outputs=tuple(None if layout is None else layout_record(layout) for layout in step.outputs),
        collectives=tuple(collective_record(collective) for collective in step.collectives),
        fallback=step.fallback or "",
        draw_bytes=step.draw_bytes,
        draws_locally=step.draws_locally,
        graph=graph_record(step, step.local_graph.graph) if graph else None,
        picture=step_graph_record(step) if picture else None,
    )


def brief_record(step: Step) -> BriefRecord:
    """A step in one line."""
    return BriefRecord(
        name=step.name,
        op=step.op,
        phase=step.phase,
        gives=", ".join(layout_record(layout).text for layout in step.outputs if layout is not None),
        communicates=", ".join(f"{found.kind}({', '.join(found.axes)})" for found in step.collectives),
        place=step.source.place if step.source else "",
    )


def _operand_record(step: Step, operand: Operand) -> OperandRecord:
    moves = operand.redistribution.moves if operand.redistribution else ()
    return OperandRecord(
        name=operand.name,
        have=layout_record(operand.have),
        need=layout_record(operand.need),
        moves=tuple(_move_record(step, move) for move in moves),
    )


def _move_record(step: Step, move: Move) -> MoveRecord:
    """A move; its bytes are those of the collective that carries it out."""
    carried = (
        found.payload_bytes
        for found in step.collectives
        if found.kind == move.kind and move.axis in found.axes and found.have == move.before
    )
    return MoveRecord(
        kind=move.kind,
        axis=axis_span(move.before.mesh, move.axis),
        payload_bytes=next(carried, 0) if move.is_collective else 0,
        communicates=move.is_collective,
    )


def graph_record(step: Step, graph: fx.Graph) -> CodeRecord:
    """The dispatch subgraph of a step as code."""
    mesh = next((operand.have.mesh for operand in step.operands), None)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    returned = next(node for node in reversed(graph.nodes) if node.op == "output").args[0]
    results = returned if isinstance(returned, (tuple, list)) else [returned]
    return code_record(
        graph,
        step.name,
        global_comment,
        arguments=[("", "") for _ in placeholders],
        results=[("", "", "") for _ in results],
        mesh=mesh,
    )
