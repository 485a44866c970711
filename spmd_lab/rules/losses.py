"""The negative log-likelihood: means are over the weights of all ranks, and classes may be divided too.

A rank that holds some of the classes picks the rows whose class it has, and leaves the others to a pending sum.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.layout import replicated
from spmd_lab.rules.plan import TensorArg
from spmd_lab.rules.reductions import all_reduced, axes_dividing
from spmd_lab.rules.strategies import Way, choose_ways, pick
from spmd_lab.torch_internals.operators import has_argument

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx
    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.layout import Layout
    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.rules.plan import OpCall, Plan

__all__ = ["RULES"]

aten = torch.ops.aten
NONE, MEAN, SUM = 0, 1, 2
CLASSES = 1


def plan_nll_loss(call: OpCall) -> Plan:
    """Plan ``nll_loss_forward(self, target, weight, reduction, ignore_index) -> output, total_weight``."""
    reduction = call.argument("reduction")

    def outputs(dim: int) -> tuple[Placement, ...]:
        kept: Placement = Shard(dim - (dim > CLASSES))
        return {NONE: (kept, Replicate()), MEAN: (Partial(), Replicate()), SUM: (Partial(), Partial())}[reduction]

    ways = [Way(_by_item(call, dim), outputs(dim)) for dim in _item_dims(call)]
    plan = _chosen(call, [*ways, *_by_class(call, (Partial(), Replicate()))])
    if not ways:
        return plan
    logits = plan.needs[0]
    if logits.splits(CLASSES):
        return replace(plan, emit=_of_own_classes(call, logits))
    if reduction == MEAN and axes_dividing(logits, _item_dims(call)):
        return replace(plan, emit=_mean_over_all(call, logits))
    return plan


def _mean_over_all(
    call: OpCall, logits: Layout
) -> Callable[[LocalGraphBuilder, tuple[fx.Node, ...]], tuple[fx.Node, fx.Node]]:
    """Sum one's own items, and divide by the weight of all."""

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> tuple[fx.Node, fx.Node]:
        own, target, weight = (pick(call.argument(name), nodes) for name in ("self", "target", "weight"))
        local = builder.call(call.op, own, target, weight, SUM, call.argument("ignore_index"))
        total = _over_all_items(builder, call, builder.call(operator.getitem, local, 1), logits)
        return builder.call(aten.div.Tensor, builder.call(operator.getitem, local, 0), total), total

    return emit


def _over_all_items(builder: LocalGraphBuilder, call: OpCall, total: fx.Node, logits: Layout) -> fx.Node:
    """The weight of the items of all ranks."""
    axes = axes_dividing(logits, _item_dims(call))
    return all_reduced(builder, total, axes, replicated((), logits.dtype, call.mesh))


def _of_own_classes(
    call: OpCall, logits: Layout
) -> Callable[[LocalGraphBuilder, tuple[fx.Node, ...]], tuple[fx.Node, fx.Node]]:
    """The items whose class this rank has; each is counted by every rank of the axes that divide classes."""
    reduction = call.argument("reduction")

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> tuple[fx.Node, fx.Node]:
        own = _OwnClasses(builder, call, logits, nodes)
        picked = builder.call(aten.gather.default, own.never_empty(nodes[0]), CLASSES, own.place)
        loss = own.counted(builder.call(aten.neg.default, picked))
        loss = builder.call(aten.squeeze.dim, loss, CLASSES)
        if reduction == NONE:
            return loss, builder.call(aten.new_zeros.default, loss, [])
        loss, total = builder.call(aten.sum.default, loss), builder.call(aten.sum.default, own.weight)
        if reduction == SUM:
            return loss, total
        total = _over_all_items(builder, call, total, logits)
        return builder.call(aten.div.Tensor, loss, total), total

    return emit


def plan_nll_loss_backward(call: OpCall) -> Plan:
    """Plan the backward: items are independent once the total weight is whole, and classes are anyway."""
    ways = [Way(_by_item(call, dim), (Shard(dim),)) for dim in _item_dims(call)]
    plan = _chosen(call, [*ways, *_by_class(call, (Shard(CLASSES),))])
    logits = plan.needs[call.argument("self").index]
    return replace(plan, emit=_own_gradients(call, logits)) if ways and logits.splits(CLASSES) else plan


def _own_gradients(call: OpCall, logits: Layout) -> Callable[[LocalGraphBuilder, tuple[fx.Node, ...]], fx.Node]:
    """A gradient at the place of the class of each item, where this rank has that class."""
    reduction = call.argument("reduction")

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> fx.Node:
        own = _OwnClasses(builder, call, logits, nodes)
        grad = pick(call.argument("grad_output"), nodes)
        if reduction == NONE:
            grad = builder.call(aten.unsqueeze.default, grad, CLASSES)
        if reduction == MEAN:
            grad = builder.call(aten.div.Tensor, grad, pick(call.argument("total_weight"), nodes))
        grad = own.counted(builder.call(aten.neg.default, grad))
        padded = own.never_empty(builder.call(aten.zeros_like.default, pick(call.argument("self"), nodes)))
        made = builder.call(aten.scatter.src, padded, CLASSES, own.place, grad)
        return builder.narrow(made, CLASSES, 0, own.count) if own.may_be_empty else made

    return emit


class _OwnClasses:
    """Appends what a rank does that holds some of the classes: finds the items whose class it has.

    Attributes
    ----------
    count : int
        How many classes it has.
    place : torch.fx.Node
        For each item the place of its class among these; zero where it is not among them.
    weight : torch.fx.Node
        The weight of each item, zero where it is ignored; the same on all ranks that divide classes.
    """

    def __init__(self, builder: LocalGraphBuilder, call: OpCall, logits: Layout, nodes: tuple[fx.Node, ...]) -> None:
        self._builder = builder
        self._ndim = len(logits.global_shape)
        self.may_be_empty = bool(logits.uneven_axes.intersection(axes_dividing(logits, [CLASSES])))
        for split in logits.splits(CLASSES):
            builder.index(split.axis)
        runs = logits.runs(CLASSES, builder.coordinate)
        start, stop = runs[0] if runs else (0, 0)
        self.count = stop - start
        target = builder.call(aten.unsqueeze.default, pick(call.argument("target"), nodes), CLASSES)
        ignored = builder.call(aten.eq.Scalar, target, call.argument("ignore_index"))
        here = builder.call(aten.sub.Tensor, target, start)
        outside = builder.call(
            aten.logical_or.default,
            builder.call(aten.lt.Scalar, here, 0),
            builder.call(aten.ge.Scalar, here, self.count),
        )
        self._absent = builder.call(aten.logical_or.default, ignored, outside)
        self.place = builder.call(aten.masked_fill.Scalar, here, self._absent, 0)
        self.weight = builder.call(
            aten.masked_fill.Scalar, self._weights(call, logits, nodes, target, ignored), ignored, 0
        )

    def _weights(
        self, call: OpCall, logits: Layout, nodes: tuple[fx.Node, ...], target: fx.Node, ignored: fx.Node
    ) -> fx.Node:
        given = call.argument("weight")
        if not isinstance(given, TensorArg):
            return self._builder.call(aten.ones_like.default, target, dtype=logits.dtype)
        known = self._builder.call(aten.masked_fill.Scalar, target, ignored, 0)
        return self._builder.call(aten.index.Tensor, nodes[given.index], [known])

    def counted(self, x: fx.Node) -> fx.Node:
        """Weigh a value of each item; zero where this rank does not have its class."""
        weighed = self._builder.call(aten.mul.Tensor, x, self.weight)
        return self._builder.call(aten.masked_fill.Scalar, weighed, self._absent, 0)

    def never_empty(self, x: fx.Node) -> fx.Node:
        """Logits with a class to point at, also where this rank has none."""
        return self._builder.pad(x, self._ndim, CLASSES, int(self.count == 0)) if self.may_be_empty else x


def _chosen(call: OpCall, ways: list[Way]) -> Plan:
    """The cheapest plan: items may be divided in any order, classes of a rank have to stand next to each other."""
    plan = choose_ways(call, ways, any_order=True)
    logits = plan.needs[call.argument("self").index]
    is_scattered = len(logits.global_shape) > 1 and any(split.split_factor != 1 for split in logits.splits(CLASSES))
    return choose_ways(call, ways) if is_scattered else plan


def _item_dims(call: OpCall) -> list[int]:
    """The dims of the logits that count items; none for a single item."""
    ndim = len(call.argument("self").layout.global_shape)
    return [dim for dim in range(ndim) if dim != CLASSES] if ndim > 1 else []


def _by_item(call: OpCall, dim: int) -> tuple[Placement, ...]:
    """Divide a dim of the logits, and the same one of the target and of the gradient of an unreduced loss."""
    kept = Shard(dim - (dim > CLASSES))
    return _placed(call, Shard(dim), kept)


def _by_class(call: OpCall, outputs: tuple[Placement, ...]) -> list[Way]:
    return [Way(_placed(call, Shard(CLASSES), Replicate()), outputs)] if _item_dims(call) else []


def _placed(call: OpCall, logits: Placement, items: Placement) -> tuple[Placement, ...]:
    per_item = [call.argument("target")]
    if has_argument(call.op, "grad_output") and call.argument("reduction") == NONE:
        per_item.append(call.argument("grad_output"))
    return tuple(
        logits
        if tensor is call.argument("self")
        else items
        if any(tensor is each for each in per_item)
        else Replicate()
        for tensor in call.tensors
    )


RULES: dict[object, Callable[[OpCall], Plan]] = {
    aten.nll_loss_forward.default: plan_nll_loss,
    aten.nll_loss2d_forward.default: plan_nll_loss,
    aten.nll_loss_backward.default: plan_nll_loss_backward,
    aten.nll_loss2d_backward.default: plan_nll_loss_backward,
}
