"""Layer normalisation: rows are independent; the dims that are normalised together stay whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.rules.strategies import Way, choose_ways

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.rules.plan import OpCall, Plan

__all__ = ["RULES"]

aten = torch.ops.aten


def plan_layer_norm(call: OpCall) -> Plan:
    """Plan ``native_layer_norm(input, normalized_shape, weight, bias, eps) -> output, mean, rstd``."""
    return choose_ways(call, _by_rows(call, lambda dim: (Shard(dim),) * 3), any_order=True)


def plan_layer_norm_backward(call: OpCall) -> Plan:
    """Plan the backward: gradients of weight and bias are sums over rows.

    All are linear in the incoming gradient, but a pending one is not passed on: three results and all that is made of
    them would stay pending, each to be reduced on its own.
    """
    return choose_ways(call, _by_rows(call, lambda dim: (Shard(dim), Partial(), Partial())), any_order=True)


def _by_rows(call: OpCall, outputs: Callable[[int], tuple[Placement, ...]]) -> list[Way]:
    """One way per dim that is not normalised; weight and bias are shared by rows."""
    ndim = len(call.argument("input").layout.global_shape)
    shared = (call.argument("weight"), call.argument("bias"))
    has_rows = [not any(tensor is each for each in shared) for tensor in call.tensors]
    return [
        Way(tuple(Shard(dim) if has else Replicate() for has in has_rows), outputs(dim))
        for dim in range(ndim - len(call.argument("normalized_shape")))
    ]


RULES: dict[object, Callable[[OpCall], Plan]] = {
    aten.native_layer_norm.default: plan_layer_norm,
    aten.native_layer_norm_backward.default: plan_layer_norm_backward,
}
