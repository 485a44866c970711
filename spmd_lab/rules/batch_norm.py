"""Batch normalisation over a divided batch: the statistics are those of the whole batch, and no activation travels."""

from __future__ import annotations

import math
import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.layout import Layout
from spmd_lab.rules.never_empty import Shards, never_empty
from spmd_lab.rules.plan import TensorArg
from spmd_lab.rules.reductions import all_reduced, axes_dividing, global_moments, reduced_layout, wide_dtype
from spmd_lab.rules.strategies import Way, choose_ways, pick
from spmd_lab.torch_internals.operators import has_argument

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx
    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.rules.plan import OpCall, Plan

__all__ = ["RULES"]

aten = torch.ops.aten
CHANNELS = 1


def plan_batch_norm(call: OpCall) -> Plan:
    """Plan the forward: outputs are the normalised images, the statistics saved, and the running ones where given."""
    return _planned(call, Replicate(), [], _normalised)


def plan_batch_norm_backward(call: OpCall) -> Plan:
    """Plan the backward: gradients of images, weight and bias; without training the last two are pending sums."""
    needs = tuple(Partial() if tensor is call.argument("grad_out") else Replicate() for tensor in call.tensors)
    pending = Way(needs, (Partial(),) * len(call.results))
    return _planned(call, Replicate() if _is_training(call) else Partial(), [pending], _gradients)


def _planned(
    call: OpCall,
    over_ranks: Placement,
    more: Sequence[Way],
    synchronised: Callable[[OpCall, Plan], Callable[[LocalGraphBuilder, Shards], tuple[fx.Node | None, ...]]],
) -> Plan:
    shape = call.argument("input").layout.global_shape
    by_channel = Way(
        tuple(_by_channel(tensor.layout.global_shape, shape) for tensor in call.tensors),
        tuple(Replicate() if result is None else _by_channel(result.shape, shape) for result in call.results),
    )
    ways = [by_channel, *more]
    for dim in _reduced_dims(call):
        needs = tuple(Shard(dim) if tensor.layout.global_shape == shape else Replicate() for tensor in call.tensors)
        ways.append(Way(needs, (Shard(dim), *[over_ranks] * (len(call.results) - 1))))
    plan = _with_dtypes_of_statistics(call, choose_ways(call, ways, any_order=True))
    is_divided = axes_dividing(plan.needs[call.argument("input").index], _reduced_dims(call))
    run = synchronised(call, plan) if _is_training(call) and is_divided else _on_its_own(call, plan)
    return replace(plan, emit=never_empty(plan.needs, plan.outputs, run))


def _with_dtypes_of_statistics(call: OpCall, plan: Plan) -> Plan:
    """Running statistics keep their dtype; on tensors without data torch says that they become float32."""
    if len(plan.outputs) < 5:
        return plan
    given = [call.argument(name).layout.dtype for name in ("running_mean", "running_var")]
    running = [
        layout and Layout(layout.global_shape, dtype, call.mesh, layout.placements)
        for layout, dtype in zip(plan.outputs[-2:], given, strict=True)
    ]
    return replace(plan, outputs=(*plan.outputs[:-2], *running))


def _by_channel(shape: Sequence[int], images: tuple[int, ...]) -> Placement:
    """Divide the channels of images, of what has one value per channel, and of nothing else."""
    if tuple(shape) == images:
        return Shard(CHANNELS)
    return Shard(0) if tuple(shape) == (images[CHANNELS],) else Replicate()


def _reduced_dims(call: OpCall) -> list[int]:
    return [dim for dim in range(len(call.argument("input").layout.global_shape)) if dim != CHANNELS]


def _is_training(call: OpCall) -> bool:
    """Whether statistics are taken from the batch."""
    return call.op in _ALWAYS_TRAINING or any(
        bool(call.argument(name)) for name in ("training", "train", "update") if has_argument(call.op, name)
    )


def _on_its_own(
    call: OpCall, plan: Plan
) -> Callable[[LocalGraphBuilder, Shards], fx.Node | tuple[fx.Node | None, ...]]:
    """The operator on shards that need nothing of each other."""
    told = [None if result is None else result.dtype for result in call.results]
    is_as_told = told == [layout and layout.dtype for layout in plan.outputs]

    def run(builder: LocalGraphBuilder, shards: Shards) -> fx.Node | tuple[fx.Node | None, ...]:
        made = builder.call(call.op, *pick(call.args, shards.nodes), **pick(call.kwargs, shards.nodes))
        if is_as_told:
            return made
        items = [builder.call(operator.getitem, made, index) for index in range(len(plan.outputs))]
        return _PerChannel(builder, call, shards).finished(items, plan)

    return run


def _normalised(call: OpCall, plan: Plan) -> Callable[[LocalGraphBuilder, Shards], tuple[fx.Node | None, ...]]:
    """Normalise shards by the statistics of the whole batch."""
    images, dims = plan.needs[call.argument("input").index], _reduced_dims(call)
    count = math.prod(images.global_shape[dim] for dim in dims)

    def run(builder: LocalGraphBuilder, shards: Shards) -> tuple[fx.Node | None, ...]:
        per_channel = _PerChannel(builder, call, shards)
        x = per_channel.wide("input")
        mean, squares = global_moments(builder, x, images, dims)
        shifted = builder.call(aten.add.Tensor, builder.call(aten.div.Tensor, squares, count), call.argument("eps"))
        scale = builder.call(aten.rsqrt.default, shifted)
        out = builder.call(aten.mul.Tensor, builder.call(aten.sub.Tensor, x, mean), scale)
        for op, name in ((aten.mul.Tensor, "weight"), (aten.add.Tensor, "bias")):
            value = per_channel.spread(name)
            out = out if value is None else builder.call(op, out, value)
        made = [out, per_channel.flat(mean), per_channel.flat(scale)]
        if len(call.results) == 6:
            made.append(builder.call(aten.new_zeros.default, x, [0]))
        if len(call.results) >= 5:
            spread = builder.call(aten.div.Tensor, squares, max(count - 1, 0))
            made += [per_channel.moved("running_mean", mean), per_channel.moved("running_var", spread)]
        return per_channel.finished(made, plan)

    return run


def _gradients(call: OpCall, plan: Plan) -> Callable[[LocalGraphBuilder, Shards], tuple[fx.Node | None, ...]]:
    """The gradients of training: every rank needs two sums over the whole batch, which travel together."""
    incoming, dims = plan.needs[call.argument("grad_out").index], _reduced_dims(call)
    count = math.prod(incoming.global_shape[dim] for dim in dims)
    axes = axes_dividing(incoming, dims)
    one = reduced_layout(incoming, dims, wide_dtype(incoming.dtype))
    both = Layout((2, *one.global_shape[1:]), one.dtype, call.mesh, one.placements)

    def run(builder: LocalGraphBuilder, shards: Shards) -> tuple[fx.Node | None, ...]:
        per_channel = _PerChannel(builder, call, shards)
        grad = per_channel.wide("grad_out")
        mean = per_channel.spread("save_mean")
        scale = per_channel.spread("save_invstd" if has_argument(call.op, "save_invstd") else "save_var")
        assert mean is not None
        assert scale is not None
        centred = builder.call(aten.sub.Tensor, per_channel.wide("input"), mean)
        own = [
            builder.call(aten.sum.dim_IntList, each, dims, True)
            for each in (grad, builder.call(aten.mul.Tensor, grad, centred))
        ]
        sums = all_reduced(builder, builder.call(aten.cat.default, own), axes, both)
        total, dot = (builder.call(aten.slice.Tensor, sums, 0, place, place + 1) for place in (0, 1))
        grad_weight = builder.call(aten.mul.Tensor, dot, scale)
        share = builder.call(aten.div.Tensor, builder.call(aten.mul.Tensor, grad_weight, scale), count)
        grad_images = builder.call(aten.sub.Tensor, grad, builder.call(aten.div.Tensor, total, count))
        grad_images = builder.call(aten.sub.Tensor, grad_images, builder.call(aten.mul.Tensor, centred, share))
        for factor in (scale, per_channel.spread("weight")):
            grad_images = grad_images if factor is None else builder.call(aten.mul.Tensor, grad_images, factor)
        return per_channel.finished([grad_images, per_channel.flat(grad_weight), per_channel.flat(total)], plan)

    return run


class _PerChannel:
    """Appends what a call does with images, and with values that belong to a channel."""

    def __init__(self, builder: LocalGraphBuilder, call: OpCall, shards: Shards) -> None:
        self._builder = builder
        self._call = call
        self._nodes = shards.nodes
        self._ndim = len(call.argument("input").layout.global_shape)

    def wide(self, name: str) -> fx.Node:
        """A tensor in the dtype to reckon in."""
        tensor: TensorArg = self._call.argument(name)
        return self._in_dtype(self._nodes[tensor.index], wide_dtype(tensor.layout.dtype))

    def spread(self, name: str) -> fx.Node | None:
        """Values of channels, shaped to meet images; None where they are not given."""
        if not isinstance(self._call.argument(name), TensorArg):
            return None
        return self._builder.call(aten.view.default, self.wide(name), [1, -1] + [1] * (self._ndim - 2))

    def flat(self, x: fx.Node) -> fx.Node:
        """Values of channels as a vector."""
        return self._builder.call(aten.view.default, x, [-1])

    def moved(self, name: str, x: fx.Node) -> fx.Node:
        """A running statistic after this batch."""
        momentum = self._call.argument("momentum")
        kept = self._builder.call(aten.mul.Tensor, self.wide(name), 1 - momentum)
        return self._builder.call(aten.add.Tensor, kept, self.flat(x), alpha=momentum)

    def finished(self, made: Sequence[fx.Node], plan: Plan) -> tuple[fx.Node | None, ...]:
        """The outputs that are asked for, in their dtypes."""
        return tuple(
            None if layout is None else self._in_dtype(node, layout.dtype)
            for node, layout in zip(made, plan.outputs, strict=True)
        )

    def _in_dtype(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        return self._builder.call(aten._to_copy.default, node, dtype=dtype)


_ALWAYS_TRAINING: set[Any] = {aten._batch_norm_with_update_functional.default}

RULES: dict[object, Callable[[OpCall], Plan]] = {
    aten._batch_norm_with_update_functional.default: plan_batch_norm,
    aten._native_batch_norm_legit.no_stats: plan_batch_norm,
    aten._native_batch_norm_legit_functional.default: plan_batch_norm,
    aten._native_batch_norm_legit_no_training.default: plan_batch_norm,
    aten.batch_norm_backward.default: plan_batch_norm_backward,
    aten.native_batch_norm_backward.default: plan_batch_norm_backward,
}
