"""Softmax: rows are independent; where rows themselves are divided, their maxima and sums travel, not they."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.rules.reductions import all_reduced, axes_dividing, reduced_layout, wide_dtype
from spmd_lab.rules.strategies import Way, choose_ways

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

    from spmd_lab.layout import Layout
    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.rules.plan import OpCall, Plan

__all__ = ["RULES"]

aten = torch.ops.aten


def plan_softmax(call: OpCall) -> Plan:
    """Plan ``_softmax(self, dim, half_to_float)``, or its logarithm."""
    (layout,) = call.has
    plan = choose_ways(
        call, [Way((Shard(dim),), (Shard(dim),)) for dim in range(len(layout.global_shape))], any_order=True
    )
    (need,), dim = plan.needs, _dim(call)
    axes = axes_dividing(need, [dim]) if need.global_shape else []
    return replace(plan, emit=_over_ranks(call, need, dim, axes)) if axes else plan


def _over_ranks(
    call: OpCall, need: Layout, dim: int, axes: list[str]
) -> Callable[[LocalGraphBuilder, tuple[fx.Node, ...]], fx.Node]:
    """Shards of a row agree on its maximum first, then on its sum."""
    (result,) = call.results
    assert result is not None
    wide, ndim, is_log = wide_dtype(need.dtype), len(need.global_shape), call.op is aten._log_softmax.default
    one = reduced_layout(need, [dim], wide)

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> fx.Node:
        x = builder.call(aten._to_copy.default, nodes[0], dtype=wide)
        row = x
        if need.uneven_axes.intersection(axes):  # a maximum has to have an element: one that counts for nothing
            missing = int(builder.local_shape(need)[dim] == 0)
            row = builder.call(aten.constant_pad_nd.default, x, [0] * (2 * (ndim - dim) - 1) + [missing], -math.inf)
        largest = all_reduced(builder, builder.call(aten.amax.default, row, [dim], True), axes, one, "max")
        shifted = builder.call(aten.sub.Tensor, x, largest)
        exponentials = builder.call(aten.exp.default, shifted)
        total = all_reduced(builder, builder.call(aten.sum.dim_IntList, exponentials, [dim], True), axes, one)
        if is_log:
            out = builder.call(aten.sub.Tensor, shifted, builder.call(aten.log.default, total))
        else:
            out = builder.call(aten.div.Tensor, exponentials, total)
        return builder.call(aten._to_copy.default, out, dtype=result.dtype)

    return emit


def plan_softmax_backward(call: OpCall) -> Plan:
    """Plan ``_softmax_backward_data(grad_output, output, dim, input_dtype)``, or that of its logarithm."""
    ndim = len(call.argument("output").layout.global_shape)
    ways = [Way((Shard(dim),) * 2, (Shard(dim),)) for dim in range(ndim)]
    plan = choose_ways(call, [*ways, Way((Partial(), Replicate()), (Partial(),))], any_order=True)
    need, dim = plan.needs[0], _dim(call)
    axes = axes_dividing(need, [dim]) if need.global_shape else []
    return replace(plan, emit=_backward_over_ranks(call, need, dim, axes)) if axes else plan


def _backward_over_ranks(
    call: OpCall, need: Layout, dim: int, axes: list[str]
) -> Callable[[LocalGraphBuilder, tuple[fx.Node, ...]], fx.Node]:
    (result,) = call.results
    assert result is not None
    wide, is_log = wide_dtype(need.dtype), call.op is aten._log_softmax_backward_data.default
    one = reduced_layout(need, [dim], wide)

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> fx.Node:
        grad, out = (builder.call(aten._to_copy.default, node, dtype=wide) for node in nodes)
        if is_log:
            out = builder.call(aten.exp.default, out)
        else:
            grad = builder.call(aten.mul.Tensor, grad, out)
        total = all_reduced(builder, builder.call(aten.sum.dim_IntList, grad, [dim], True), axes, one)
        share = builder.call(aten.mul.Tensor, out, total)
        return builder.call(aten._to_copy.default, builder.call(aten.sub.Tensor, grad, share), dtype=result.dtype)

    return emit


def _dim(call: OpCall) -> int:
    """The dim that sums to one; a number counts as a row of one."""
    ndim = len(call.has[0].global_shape)
    return int(call.argument("dim")) % ndim if ndim else 0


RULES: dict[object, Callable[[OpCall], Plan]] = {
    aten._log_softmax.default: plan_softmax,
    aten._log_softmax_backward_data.default: plan_softmax_backward,
    aten._softmax.default: plan_softmax,
    aten._softmax_backward_data.default: plan_softmax_backward,
}
