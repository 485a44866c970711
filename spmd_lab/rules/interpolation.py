"""Reading and adding at positions that every rank knows, as changes of resolution are traced.

The dims that are not indexed are independent, and what is read or added may be pending.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.rules.strategies import Way, choose_ways

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.rules.plan import OpCall, Plan, TensorArg

__all__ = ["RULES"]

aten = torch.ops.aten


class _Free(NamedTuple):
    """A dim that is not indexed, and where it comes out, counted from the last dim."""

    dim: int
    from_last: int


def plan_read(call: OpCall) -> Plan:
    """Plan ``_unsafe_index(self, indices)``."""
    source = call.argument("self")
    ndim, free = _free_dims(call.argument("indices"), len(source.layout.global_shape))
    ways = [Way(_placed(call, {source.index: Shard(dim)}), (Shard(ndim + back),)) for dim, back in free]
    ways += [Way(_placed(call, {source.index: kind}), (kind,)) for kind in (Partial("sum"), Partial("avg"))]
    return choose_ways(call, ways)


def plan_add(call: OpCall) -> Plan:
    """Plan ``_unsafe_index_put(self, indices, values, accumulate)``."""
    target, values = call.argument("self"), call.argument("values")
    given = values.layout.global_shape
    _, free = _free_dims(call.argument("indices"), len(target.layout.global_shape))
    ways = []
    for dim, back in free:
        is_stretched = -back > len(given) or given[back] != target.layout.global_shape[dim]
        placements = {target.index: Shard(dim), values.index: Replicate() if is_stretched else Shard(len(given) + back)}
        ways.append(Way(_placed(call, placements), (Shard(dim),)))
    ways.append(Way(_placed(call, {target.index: Partial(), values.index: Partial()}), (Partial(),)))
    return choose_ways(call, ways)


def _placed(call: OpCall, placements: Mapping[int, Placement]) -> tuple[Placement, ...]:
    return tuple(placements.get(tensor.index, Replicate()) for tensor in call.tensors)


def _free_dims(indices: Sequence[TensorArg | None], ndim: int) -> tuple[int, list[_Free]]:
    """How many dims come out, and the dims that are not indexed.

    The dims of the indices take the place of those indexed, or the first place where these do not stand together.
    """
    indexed = [dim for dim, each in enumerate(indices) if each is not None]
    inner = max(len(each.layout.global_shape) for each in indices if each is not None)
    is_together = indexed == list(range(indexed[0], indexed[-1] + 1))
    free = [dim for dim in range(ndim) if dim not in indexed]
    before = sum(dim < indexed[0] for dim in free) if is_together else 0
    count = len(free) + inner
    places = [position if position < before else position + inner for position in range(len(free))]
    return count, [_Free(dim, place - count) for dim, place in zip(free, places, strict=True)]


RULES: dict[object, Callable[[OpCall], Plan]] = {
    aten._unsafe_index.Tensor: plan_read,
    aten._unsafe_index_put.default: plan_add,
}
