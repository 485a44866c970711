"""An expansion as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spmd_lab.expand.expansion import Expansion
    from spmd_lab.expand.values import Collective, Step
    from spmd_lab.layout import Layout
    from spmd_lab.trace.values import Source

__all__ = ["json_of"]


def json_of(expansion: Expansion) -> str:
    """See `Expansion.to_json`."""
    traced = expansion.traced
    return json.dumps(
        {
            "format": "spmd_lab expansion",
            "version": 1,
            "name": expansion.name,
            "mesh": dict(zip(expansion.mesh.axes, expansion.mesh.shape, strict=True)),
            "inputs": [
                {"name": found.name, "role": found.role, "layout": str(layout)}
                for found, layout in zip(traced.inputs, expansion.input_layouts, strict=True)
            ],
            "outputs": [
                {"name": found.name, "role": found.role, "layout": _text(layout)}
                for found, layout in zip(traced.outputs, expansion.output_layouts, strict=True)
            ],
            "steps": [_step(step) for step in expansion.steps],
        },
        indent=1,
        ensure_ascii=False,
    )


def _text(layout: Layout | None) -> str | None:
    return None if layout is None else str(layout)


def _source(source: Source | None) -> dict[str, Any] | None:
    if source is None:
        return None
    return {"place": source.place, "code": source.code, "function": source.function, "module": source.module}


def _step(step: Step) -> dict[str, Any]:
    return {
        "name": step.name,
        "op": step.op,
        "phase": step.phase,
        "source": _source(step.source),
        "operands": [
            {
                "name": operand.name,
                "have": str(operand.have),
                "need": str(operand.need),
                "moves": [
                    {"kind": move.kind, "axis": move.axis, "before": str(move.before), "after": str(move.after)}
                    for move in (operand.redistribution.moves if operand.redistribution else ())
                ],
            }
            for operand in step.operands
        ],
        "outputs": [_text(layout) for layout in step.outputs],
        "collectives": [_collective(found) for found in step.collectives],
        "fallback": step.fallback,
    }


def _collective(found: Collective) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "axes": list(found.axes),
        "group_size": found.group_size,
        "reduce_op": found.reduce_op,
        "payload_bytes": found.payload_bytes,
        "sent_bytes_per_rank": found.sent_bytes_per_rank,
        "operand": found.operand,
        "have": str(found.have),
        "need": str(found.need),
    }
