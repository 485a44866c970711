"""Fused attention on CPU, which torch has no rule for: batch and heads are independent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import Replicate, Shard

from spmd_lab.rules.stock import plan_whole
from spmd_lab.rules.strategies import Way, choose_ways

if TYPE_CHECKING:
    from collections.abc import Callable

    from spmd_lab.rules.plan import OpCall, Plan, TensorArg

__all__ = ["RULES"]

aten = torch.ops.aten


def plan_attention(call: OpCall) -> Plan:
    """Plan the forward, or the backward: every tensor but the mask has batch at dim 0 and heads at dim 1."""
    if call.argument("dropout_p") != 0.0:
        return plan_whole(call, f"{call.title} draws its dropout mask inside the kernel")
    query, key = (call.argument(name).layout.global_shape for name in ("query", "key"))
    dims = [0] + ([1] if query[1] == key[1] else [])
    return choose_ways(call, [_way(call, dim) for dim in dims])


def _way(call: OpCall, dim: int) -> Way:
    """Divide one dim of all tensors; a mask that is broadcast over that dim stays whole."""
    mask = call.argument("attn_mask")
    place = Shard(dim)
    needs = tuple(place if tensor is not mask or _spans(mask, dim) else Replicate() for tensor in call.tensors)
    return Way(needs, (place,) * len(call.results))


def _spans(mask: TensorArg, dim: int) -> bool:
    shape = mask.layout.global_shape
    return len(shape) == 4 and shape[dim] > 1


RULES: dict[object, Callable[[OpCall], Plan]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: plan_attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: plan_attention,
}
