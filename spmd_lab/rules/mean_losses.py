"""Losses that compare element by element, then add up or average: a mean over shards must know the count of the whole.

Torch's own rules let each rank divide by the number of its own elements, and so get the backward of every mean wrong,
and its value wherever shards differ in size.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import Partial, Shard

from spmd_lab.rules.strategies import Way, aligned, choose_ways, pick
from spmd_lab.torch_internals.operators import position_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

    from spmd_lab.layout import Layout
    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.rules.plan import OpCall, Plan

__all__ = ["RULES"]

aten = torch.ops.aten
NONE, MEAN, SUM = 0, 1, 2


def plan_loss(call: OpCall) -> Plan:
    """Plan a loss: any dim may be divided; a sum or a mean is then a pending sum."""
    plan, divided = _plan_by_element(call, summed=call.argument("reduction") != NONE)
    if divided is None or call.argument("reduction") != MEAN:
        return plan
    return replace(plan, emit=_mean_of_sums(call, divided) if divided.uneven_axes else _mean_of_means(call, divided))


def plan_loss_backward(call: OpCall) -> Plan:
    """Plan the backward of a loss: elements are independent but for the count that a mean divides by."""
    plan, divided = _plan_by_element(call, summed=False)
    if divided is None or call.argument("reduction") != MEAN:
        return plan
    return replace(plan, emit=_mean_of_sums(call, divided))


def _plan_by_element(call: OpCall, *, summed: bool) -> tuple[Plan, Layout | None]:
    """The plan, and the layout that the elements are divided by; None where every rank has all of them."""
    shape = torch.broadcast_shapes(*(tensor.layout.global_shape for tensor in call.tensors))
    like = next((tensor for tensor in call.tensors if tensor.layout.global_shape == shape), None)
    (result,) = call.results
    if like is None or result is None or not (summed or tuple(result.shape) == shape):
        return choose_ways(call, []), None
    ways = [
        Way(tuple(aligned(tensor, dim, shape) for tensor in call.tensors), (Partial() if summed else Shard(dim),))
        for dim in range(len(shape))
    ]
    plan = choose_ways(call, ways)
    layout = plan.needs[like.index]
    return plan, None if layout.is_replicated else layout


def _mean_of_sums(call: OpCall, layout: Layout) -> Callable[[LocalGraphBuilder, tuple[fx.Node, ...]], fx.Node]:
    """Add up one's own elements, and divide by the number of all."""
    args, kwargs = _with_reduction(call, SUM)
    count = math.prod(layout.global_shape)

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> fx.Node:
        local = builder.call(call.op, *pick(args, nodes), **pick(kwargs, nodes))
        return builder.call(aten.div.Tensor, local, count)

    return emit


def _mean_of_means(call: OpCall, layout: Layout) -> Callable[[LocalGraphBuilder, tuple[fx.Node, ...]], fx.Node]:
    """Average one's own elements, as many as everyone's: no large sum that a small dtype could not hold."""
    pieces = math.prod(split.axis_size for dim in range(len(layout.global_shape)) for split in layout.splits(dim))

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> fx.Node:
        local = builder.call(call.op, *pick(call.args, nodes), **pick(call.kwargs, nodes))
        return builder.call(aten.div.Tensor, local, pieces)

    return emit


def _with_reduction(call: OpCall, reduction: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with another reduction."""
    position = position_of(call.op, "reduction")
    if position is not None and position < len(call.args):
        return (*call.args[:position], reduction, *call.args[position + 1 :]), call.kwargs
    return call.args, call.kwargs | {"reduction": reduction}


RULES: dict[object, Callable[[OpCall], Plan]] = {
    aten.mse_loss.default: plan_loss,
    aten.smooth_l1_loss.default: plan_loss,
    aten.huber_loss.default: plan_loss,
    aten.soft_margin_loss.default: plan_loss,
    aten.binary_cross_entropy.default: plan_loss,
    aten.binary_cross_entropy_with_logits.default: plan_loss,
    aten.mse_loss_backward.default: plan_loss_backward,
    aten.smooth_l1_loss_backward.default: plan_loss_backward,
    aten.huber_loss_backward.default: plan_loss_backward,
    aten.soft_margin_loss_backward.default: plan_loss_backward,
    aten.binary_cross_entropy_backward.default: plan_loss_backward,
}
