"""What comes of an empty shard, where an operator would refuse it: nothing, or the neutral element of a reduction."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx

    from spmd_lab.layout import Layout
    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.rules.plan import Plan
    from spmd_lab.torch_internals.operators import OpOverload

__all__ = ["from_nothing", "refuses_nothing", "unless_empty"]

aten = torch.ops.aten

_REFUSE = frozenset(
    {aten._fft_c2c, aten._fft_c2r, aten._fft_r2c, aten.max, aten.min, aten.amax, aten.amin, aten.aminmax}
    | {aten.select_backward}
)


def refuses_nothing(op: OpOverload) -> bool:
    """Whether an operator fails on tensors without elements; all others run on them as on any."""
    return op.overloadpacket in _REFUSE


def from_nothing(
    builder: LocalGraphBuilder,
    nodes: Sequence[fx.Node],
    needs: Sequence[Layout],
    outputs: Sequence[Layout | None],
) -> tuple[fx.Node | None, ...] | None:
    """The outputs of a rank whose shards are empty, without the operator; None where the operator has to run.

    Parameters
    ----------
    builder : LocalGraphBuilder
        Of the rank.
    nodes : sequence of torch.fx.Node
        A node per tensor.
    needs, outputs : sequence of Layout
        Those of the plan.
    """
    empty = [_is_empty(builder, need) for need in needs]
    if not any(empty) or any(layout is None for layout in outputs):
        return None
    made = []
    for layout in outputs:
        assert layout is not None
        shape = builder.local_shape(layout)
        if 0 in shape:
            number: float | int | bool = 0
        elif len(needs) == 1 and len(kinds := set(layout.pending.values())) == 1:
            number = neutral(kinds.pop(), layout.dtype)
        else:
            return None
        made.append(builder.call(aten.new_full.default, nodes[0], list(shape), number, dtype=layout.dtype))
    return tuple(made)


def _is_empty(builder: LocalGraphBuilder, layout: Layout) -> bool:
    return 0 not in layout.global_shape and 0 in builder.local_shape(layout)


def unless_empty(plan: Plan) -> Plan:
    """The same plan, whose local program does not run the operator on nothing."""

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> Any:
        made = from_nothing(builder, nodes, plan.needs, plan.outputs)
        return plan.emit(builder, nodes) if made is None else made

    return replace(plan, emit=emit)


def neutral(reduce_op: str, dtype: torch.dtype) -> float | int | bool:
    """The number that changes nothing in a reduction.

    Examples
    --------
    >>> neutral("sum", torch.float32), neutral("max", torch.int8), neutral("min", torch.float32)
    (0, -128, inf)
    """
    if reduce_op in ("sum", "avg"):
        return 0
    if reduce_op == "product":
        return 1
    if dtype == torch.bool:
        return reduce_op == "min"
    if dtype.is_floating_point:
        return math.inf if reduce_op == "min" else -math.inf
    bounds = torch.iinfo(dtype)
    return bounds.max if reduce_op == "min" else bounds.min
