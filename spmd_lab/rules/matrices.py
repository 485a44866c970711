"""Operators of matrices: the batch may be divided; triangles and traces know where a shard stands in its matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spmd_lab.rules.along import LINEAR, leading, pending_ways, plan_along, under, ways_along
from spmd_lab.rules.own_window import own_window
from spmd_lab.rules.plan import Plan
from spmd_lab.rules.strategies import choose_ways

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.rules.plan import OpCall

__all__ = ["RULES"]

aten = torch.ops.aten


def plan_batch_of_matrices(call: OpCall) -> Plan:
    """Plan an operator of matrices: what else it takes has a value for each matrix, or one for all."""
    batch = call.has[0].global_shape[:-2]
    labels = [[*under(batch, batch), None, None], *[under(other.global_shape, batch) for other in call.has[1:]]]
    made = [
        under(batch, batch) + [None] * (0 if result is None else result.ndim - len(batch)) for result in call.results
    ]
    return plan_along(call, labels, made)


def plan_errors(call: OpCall) -> Plan:
    """Plan ``_linalg_check_errors(info, …)``: each rank looks at its own matrices."""
    labels = leading(call.has[0].global_shape)
    return plan_along(call, [labels], [labels])


def plan_triangle(call: OpCall) -> Plan:
    """Plan ``triu(self, diagonal)`` and ``tril``: every dim may be divided."""
    (layout,) = call.has
    labels = leading(layout.global_shape)
    plan = choose_ways(
        call, [*ways_along(call, [labels], [labels]), *pending_ways(call, [call.tensors], LINEAR)], emit=None
    )

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> fx.Node:
        return builder.call(call.op, nodes[0], call.argument("diagonal") + _below(builder, plan))

    return Plan(plan.needs, plan.outputs, emit)


def plan_trace(call: OpCall) -> Plan:
    """Plan ``trace(self)``: each rank adds up the part of the diagonal that it holds."""
    ways = [*ways_along(call, [[0, 1]], [[]]), *pending_ways(call, [call.tensors], LINEAR)]
    plan = choose_ways(call, ways)

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> fx.Node:
        return builder.call(
            aten.sum.default,
            builder.call(aten.diagonal.default, nodes[0], _below(builder, plan)),
        )

    return Plan(plan.needs, plan.outputs, emit)


def _below(builder: LocalGraphBuilder, plan: Plan) -> int:
    """How far a shard's first element lies below the diagonal."""
    (need,) = plan.needs
    ndim = len(need.global_shape)
    return own_window(builder, need, ndim - 2).start - own_window(builder, need, ndim - 1).start


def plan_diag_embed(call: OpCall) -> Plan:
    """Plan ``diag_embed(self, offset, dim1, dim2)``: what is before the last dim is independent."""
    (layout,), (result,) = call.has, call.results
    assert result is not None
    crossed = {call.argument(name) % result.ndim for name in ("dim1", "dim2")}
    labels = leading(layout.global_shape, but=1)
    remaining = iter(labels)
    made = [None if dim in crossed else next(remaining) for dim in range(result.ndim)]
    return plan_along(call, [labels], [made], more=pending_ways(call, [call.tensors], LINEAR))


RULES: dict[object, Callable[[OpCall], Plan]] = {
    aten._linalg_check_errors.default: plan_errors,
    aten._linalg_eigh.default: plan_batch_of_matrices,
    aten._linalg_svd.default: plan_batch_of_matrices,
    aten.diag_embed.default: plan_diag_embed,
    aten.linalg_lu.default: plan_batch_of_matrices,
    aten.linalg_pinv.atol_rtol_tensor: plan_batch_of_matrices,
    aten.linalg_qr.default: plan_batch_of_matrices,
    aten.trace.default: plan_trace,
    aten.tril.default: plan_triangle,
    aten.triu.default: plan_triangle,
}
