"""Convolutions, transposed ones too: divided by images, by output channels, by input channels, or by groups of them.

The dims that a kernel moves along stay whole.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.rules.never_empty import Shards, never_empty
from spmd_lab.rules.strategies import Way, choose_ways, pick

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import fx
    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.rules.plan import OpCall, Plan, TensorArg

__all__ = ["RULES"]

aten = torch.ops.aten
WHOLE, PENDING = Replicate(), Partial()
IMAGES, CHANNELS = Shard(0), Shard(1)


class _Weight(NamedTuple):
    """The dims of a weight that count output and input channels; with groups, those of one group for one of them."""

    out: Placement
    inside: Placement


def _weight(call: OpCall) -> _Weight:
    return _Weight(Shard(1), Shard(0)) if call.argument("transposed") else _Weight(Shard(0), Shard(1))


def plan_convolution(call: OpCall) -> Plan:
    """Plan ``convolution(input, weight, bias, …)``."""
    weight = _weight(call)

    def way(output: Placement, image: Placement, kernel: Placement, bias: Placement) -> Way:
        return Way(_placed(call, {"input": image, "weight": kernel, "bias": bias}), (output,))

    ways = [way(IMAGES, IMAGES, WHOLE, WHOLE)]
    if call.argument("groups") == 1:
        ways += [way(CHANNELS, WHOLE, weight.out, Shard(0)), way(PENDING, CHANNELS, weight.inside, PENDING)]
    elif _groups_can_be_divided(call):
        ways += [way(CHANNELS, CHANNELS, Shard(0), Shard(0))]
    ways += [way(PENDING, PENDING, WHOLE, PENDING), way(PENDING, WHOLE, PENDING, PENDING)]
    return _on_shards(call, choose_ways(call, ways))


def plan_convolution_backward(call: OpCall) -> Plan:
    """Plan ``convolution_backward(grad_output, input, weight, …) -> grad_input, grad_weight, grad_bias``."""
    weight = _weight(call)

    def way(needs: tuple[Placement, ...], outputs: tuple[Placement, ...]) -> Way:
        return Way(_placed(call, dict(zip(("grad_output", "input", "weight"), needs, strict=True))), outputs)

    ways = [way((IMAGES, IMAGES, WHOLE), (IMAGES, PENDING, PENDING))]
    if call.argument("groups") == 1:
        ways += [
            way((CHANNELS, WHOLE, weight.out), (PENDING, weight.out, Shard(0))),
            way((WHOLE, CHANNELS, weight.inside), (CHANNELS, weight.inside, WHOLE)),
        ]
    elif _groups_can_be_divided(call):
        ways += [way((CHANNELS, CHANNELS, Shard(0)), (CHANNELS, Shard(0), Shard(0)))]
    ways += [way((PENDING, WHOLE, WHOLE), (PENDING, PENDING, PENDING))]
    return _on_shards(call, choose_ways(call, ways))


def _placed(call: OpCall, placements: Mapping[str, Placement]) -> tuple[Placement, ...]:
    """One placement per tensor of the call, by the names of arguments."""
    given = {name: call.argument(name) for name in placements}
    return tuple(next(placements[name] for name, value in given.items() if value is tensor) for tensor in call.tensors)


def _groups_can_be_divided(call: OpCall) -> bool:
    """Whether shards of channels hold whole groups: one channel is a group, or groups divide evenly over all axes."""
    groups, images, kernel = call.argument("groups"), call.argument("input"), call.argument("weight")
    is_depthwise = images.layout.global_shape[1] == groups and _output_channels(call, kernel) == groups
    return is_depthwise or bool(groups % call.mesh.size == 0)


def _output_channels(call: OpCall, kernel: TensorArg) -> int:
    shape = kernel.layout.global_shape
    return int(shape[1] * call.argument("groups") if call.argument("transposed") else shape[0])


def _on_shards(call: OpCall, plan: Plan) -> Plan:
    """Run the operator with the groups, and the size of the bias, that a shard has."""
    images = call.argument("input")
    per_group = images.layout.global_shape[1] // call.argument("groups")
    is_grouped = call.argument("groups") > 1

    def run(builder: LocalGraphBuilder, shards: Shards) -> fx.Node:
        args = list(pick(call.args, shards.nodes))
        if is_grouped:
            args[_GROUPS[call.op]] = shards.shapes[images.index][1] // per_group
        if call.op is aten.convolution_backward.default and args[3] is not None:
            args[3] = [shards.shapes[call.argument("grad_output").index][1]]
        return builder.call(call.op, *args)

    return replace(plan, emit=never_empty(plan.needs, plan.outputs, run))


_GROUPS = {aten.convolution.default: 8, aten.convolution_backward.default: 9}
"""Where each operator takes the number of groups."""

RULES: dict[object, Callable[[OpCall], Plan]] = {
    aten.convolution.default: plan_convolution,
    aten.convolution_backward.default: plan_convolution_backward,
}
