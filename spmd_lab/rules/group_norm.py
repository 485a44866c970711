"""Group norm: images are independent, and so are groups of channels."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.rules.never_empty import Shards, never_empty
from spmd_lab.rules.plan import TensorArg
from spmd_lab.rules.strategies import Way, choose_ways, pick
from spmd_lab.torch_internals.operators import position_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx
    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.rules.plan import OpCall, Plan

__all__ = ["RULES"]

aten = torch.ops.aten
IMAGES, CHANNELS = Shard(0), Shard(1)


def plan_group_norm(call: OpCall) -> Plan:
    """Plan ``native_group_norm(input, weight, bias, N, C, HxW, group, eps) -> out, mean, rstd``."""
    ways = [Way(_placed(call, IMAGES, Replicate()), (IMAGES,) * 3)]
    if _groups_can_be_divided(call):
        ways.append(Way(_placed(call, CHANNELS, Shard(0)), (CHANNELS,) * 3))
    return _on_shards(call, choose_ways(call, ways))


def plan_group_norm_backward(call: OpCall) -> Plan:
    """Plan ``native_group_norm_backward(grad_out, input, mean, rstd, weight, …)``: of input, weight and bias."""
    ways = [Way(_placed(call, IMAGES, Replicate()), (IMAGES, Partial(), Partial()))]
    if _groups_can_be_divided(call):
        ways.append(Way(_placed(call, CHANNELS, Shard(0)), (CHANNELS, Shard(0), Shard(0))))
    grad = call.argument("grad_out")
    pending = tuple(Partial() if tensor is grad else Replicate() for tensor in call.tensors)
    return _on_shards(call, choose_ways(call, [*ways, Way(pending, (Partial(),) * 3)]))


def _placed(call: OpCall, images: Placement, scales: Placement) -> tuple[Placement, ...]:
    """One placement for what has a row per image, another for weight and bias."""
    return tuple(images if len(tensor.layout.global_shape) > 1 else scales for tensor in call.tensors)


def _groups_can_be_divided(call: OpCall) -> bool:
    return bool(call.argument("group") % call.mesh.size == 0)


def _on_shards(call: OpCall, plan: Plan) -> Plan:
    """Run the operator with the numbers of images, channels and groups that a shard has."""
    images = call.argument("input")
    assert isinstance(images, TensorArg)
    per_group = call.argument("C") // call.argument("group")
    places = [position_of(call.op, name) for name in ("N", "C", "group")]

    def run(builder: LocalGraphBuilder, shards: Shards) -> fx.Node:
        args = list(pick(call.args, shards.nodes))
        count, channels = shards.shapes[images.index][:2]
        for place, size in zip(places, (count, channels, channels // per_group), strict=True):
            assert place is not None
            args[place] = size
        return builder.call(call.op, *args)

    return replace(plan, emit=never_empty(plan.needs, plan.outputs, run))


RULES: dict[object, Callable[[OpCall], Plan]] = {
    aten.native_group_norm.default: plan_group_norm,
    aten.native_group_norm_backward.default: plan_group_norm_backward,
}
