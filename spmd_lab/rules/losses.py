"""Losses that are means: a mean over shards is a sum of local sums over one common count, never a mean of means."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.layout import Layout
from spmd_lab.rules.plan import TensorArg
from spmd_lab.rules.strategies import Way, choose_ways, pick

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx
    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.rules.plan import OpCall, Plan

__all__ = ["RULES"]

aten = torch.ops.aten
NONE, MEAN, SUM = 0, 1, 2


def plan_nll_loss(call: OpCall) -> Plan:
    """Plan ``nll_loss_forward(self, target, weight, reduction, ignore_index) -> output, total_weight``.

    The batch may be divided. For a mean the local program sums its own rows, adds up the weights of all ranks, and
    divides by that: the output is a pending sum, whatever each rank ignores.
    """
    reduction = call.argument("reduction")
    outputs: tuple[Placement, ...] = {
        NONE: (Shard(0), Replicate()),
        MEAN: (Partial(), Replicate()),
        SUM: (Partial(), Partial()),
    }[reduction]
    ways = [Way(_by_batch(call), outputs)] if _has_batch(call) else []
    plan = choose_ways(call, ways)
    divided = [split.axis for split in plan.needs[0].splits(0)] if _has_batch(call) else []
    if reduction != MEAN or not divided:
        return plan
    return replace(plan, emit=_mean_over_all(call, divided))


def _mean_over_all(
    call: OpCall, axes: list[str]
) -> Callable[[LocalGraphBuilder, tuple[fx.Node, ...]], tuple[fx.Node, fx.Node]]:
    steps = _summed_over(call, axes)

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> tuple[fx.Node, fx.Node]:
        logits, target, weight = (pick(call.argument(name), nodes) for name in ("self", "target", "weight"))
        local = builder.call(call.op, logits, target, weight, SUM, call.argument("ignore_index"))
        total = builder.call(operator.getitem, local, 1)
        for have, need, axis in steps:
            total = builder.all_reduce(total, axis, have, need)
        return builder.call(aten.div.Tensor, builder.call(operator.getitem, local, 0), total), total

    return emit


def _summed_over(call: OpCall, axes: list[str]) -> list[tuple[Layout, Layout, str]]:
    """The layouts of a number that every rank has a part of, as it is summed over one axis after the other."""
    layouts = [
        Layout(
            (),
            call.argument("self").layout.dtype,
            call.mesh,
            [Partial() if axis in axes[done:] else Replicate() for axis in call.mesh.axes],
        )
        for done in range(len(axes) + 1)
    ]
    return list(zip(layouts, layouts[1:], axes, strict=False))


def plan_nll_loss_backward(call: OpCall) -> Plan:
    """Plan the backward: rows are independent once the total weight is whole."""
    ways = [Way(_by_batch(call), (Shard(0),))] if _has_batch(call) else []
    return choose_ways(call, ways)


def _has_batch(call: OpCall) -> bool:
    return len(call.argument("self").layout.global_shape) > 1


def _by_batch(call: OpCall) -> tuple[Placement, ...]:
    """Divide what has a batch dim: logits, target, and the gradient of an unreduced loss."""
    rows = call.argument("self").layout.global_shape[0]
    whole: set[int] = set()
    for name in ("weight", "total_weight"):
        try:
            found = call.argument(name)
        except KeyError:
            continue
        if isinstance(found, TensorArg):
            whole.add(found.index)
    return tuple(
        Shard(0) if tensor.index not in whole and tensor.layout.global_shape[:1] == (rows,) else Replicate()
        for tensor in call.tensors
    )


RULES: dict[object, Callable[[OpCall], Plan]] = {
    aten.nll_loss_forward.default: plan_nll_loss,
    aten.nll_loss2d_forward.default: plan_nll_loss,
    aten.nll_loss_backward.default: plan_nll_loss_backward,
    aten.nll_loss2d_backward.default: plan_nll_loss_backward,
}
