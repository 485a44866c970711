"""What `Expansion.to_json` writes, as a JSON Schema."""

from __future__ import annotations

from typing import Any

__all__ = ["SCHEMA"]


def _object(**properties: Any) -> dict[str, Any]:
    """An object with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _said(description: str, *, nullable: bool = False) -> dict[str, Any]:
    """Text, and what it says."""
    return {"type": ["string", "null"] if nullable else "string", "description": description}


def _counted(description: str) -> dict[str, Any]:
    return {"type": "integer", "minimum": 0, "description": description}


_LAYOUT = _said('in the notation, as "f32[16/dp, 64]{sum: tp}"')
_LAYOUT_OR_NONE = _said("in the notation; null for what is no tensor", nullable=True)
_PHASE = {"enum": ["forward", "backward"]}

_MOVE = _object(
    kind=_said('what happens, as "all_gather" or "slice"'),
    axis=_said("the mesh axis along which it happens"),
    before=_LAYOUT,
    after=_LAYOUT,
)
_OPERAND = _object(name=_said("the traced value"), have=_LAYOUT, need=_LAYOUT, moves=_list(_MOVE))
_COLLECTIVE = _object(
    kind=_said('"all_reduce", "all_gather", "reduce_scatter" or "all_to_all"'),
    axes=_list(_said("a mesh axis")),
    group_size=_counted("so many ranks take part"),
    reduce_op=_said("how values are reduced; null where they are not", nullable=True),
    payload_bytes=_counted("the largest rank's whole message"),
    sent_bytes_per_rank=_counted("what a rank sends in a ring"),
    operand=_said("the value that is communicated"),
    have=_LAYOUT,
    need=_LAYOUT,
)
_SOURCE = _object(
    place=_said('the user\'s line, as "model.py:17"'),
    code=_said("what stands there"),
    function=_said("the function around it"),
    module=_said("the path of the module that ran it"),
)
_STEP = _object(
    name=_said('the traced node, or "resolve:" and an output'),
    op=_said('the operator, as "aten.mm.default"'),
    phase=_PHASE,
    source={"anyOf": [_SOURCE, {"type": "null"}]},
    operands=_list(_OPERAND),
    outputs=_list(_LAYOUT_OR_NONE),
    collectives=_list(_COLLECTIVE),
    fallback=_said("why everything was gathered first; null where it was not", nullable=True),
)

SCHEMA: dict[str, Any] = {
    "title": "an expansion, as written by Expansion.to_json",
    **_object(
        format={"const": "spmd_lab expansion"},
        version={"const": 1},
        name=_said("the class of the module, or the name of the function"),
        mesh={
            "type": "object",
            "additionalProperties": {"type": "integer", "minimum": 1},
            "description": "the size of each axis, the outermost first",
        },
        inputs=_list(_object(name=_said("as the user calls it"), role=_said("its role"), layout=_LAYOUT)),
        outputs=_list(_object(name=_said("as the user calls it"), role=_said("its role"), layout=_LAYOUT_OR_NONE)),
        steps=_list(_STEP),
    ),
}
"""Draft 2020-12 reads it, as does any since draft 6."""
