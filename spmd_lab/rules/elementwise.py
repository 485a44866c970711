"""Operators that work element by element and that torch has no rule for: any dim of the broadcast shape may be divided.

Each is listed with the arguments that it is linear in: those may be pending, together, while the others are whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.rules.strategies import Way, aligned, choose_ways

if TYPE_CHECKING:
    from collections.abc import Callable

    from spmd_lab.rules.plan import OpCall, Plan

__all__ = ["RULES"]

aten = torch.ops.aten


def plan_elementwise(call: OpCall) -> Plan:
    """Plan an operator whose outputs all have the broadcast shape of its tensors."""
    shape = torch.broadcast_shapes(*(tensor.layout.global_shape for tensor in call.tensors))
    if any(result is not None and result.shape != shape for result in call.results):
        return choose_ways(call, [])
    count = len(call.results)
    ways = [
        Way(tuple(aligned(tensor, dim, shape) for tensor in call.tensors), (Shard(dim),) * count)
        for dim in range(len(shape))
    ]
    linear = {call.argument(name).index for name in _LINEAR[call.op]}
    if linear:
        needs = tuple(Partial() if tensor.index in linear else Replicate() for tensor in call.tensors)
        ways.append(Way(needs, (Partial(),) * count))
    return choose_ways(call, ways)


_LINEAR: dict[object, tuple[str, ...]] = {
    aten._conj_physical.default: ("self",),
    aten._prelu_kernel_backward.default: ("grad_output",),
    aten.complex.default: ("real", "imag"),
    aten.copy.default: ("src",),
    aten.fill.Tensor: ("value",),
    aten.hardsigmoid_backward.default: ("grad_output",),
    aten.hardswish_backward.default: ("grad_output",),
    aten.hardtanh_backward.default: ("grad_output",),
    aten.log_sigmoid_backward.default: ("grad_output",),
    aten.polar.default: (),
}

RULES: dict[object, Callable[[OpCall], Plan]] = dict.fromkeys(_LINEAR, plan_elementwise)
