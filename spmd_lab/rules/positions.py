"""Reading and writing at positions along one dim: that dim stays whole, others are divided where all are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.rules.strategies import Way, choose_ways

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spmd_lab.rules.plan import OpCall, Plan

__all__ = ["RULES"]

aten = torch.ops.aten


def plan_gather(call: OpCall) -> Plan:
    """Plan ``gather(self, dim, index)``: an index may be divided anywhere that its own rows stay beside their source.

    Along another dim, row i of the index reads row i of the source: both are divided, which is only right where they
    are equally long. Along ``dim`` the source is whole.
    """
    ways = [Way((Shard(d), Shard(d)), (Shard(d),)) for d in _common_dims(call)]
    ways += [Way((Replicate(), Shard(_dim(call))), (Shard(_dim(call)),))] if _ndim(call) else []
    return choose_ways(call, [*ways, Way((Partial(), Replicate()), (Partial(),))])


def plan_scatter_reduce(call: OpCall) -> Plan:
    """Plan ``scatter_reduce(self, dim, index, src, reduce, include_self)``."""
    return choose_ways(call, [Way((Shard(d),) * 3, (Shard(d),)) for d in _common_dims(call)])


def _ndim(call: OpCall) -> int:
    return len(call.argument("self").layout.global_shape)


def _dim(call: OpCall) -> int:
    dim: int = call.argument("dim")
    return dim % max(_ndim(call), 1)


def _common_dims(call: OpCall) -> Iterator[int]:
    """The other dims along which all tensors are equally long."""
    for dim in range(_ndim(call)):
        if dim != _dim(call) and len({tensor.layout.global_shape[dim] for tensor in call.tensors}) == 1:
            yield dim


RULES: dict[object, Callable[[OpCall], Plan]] = {
    aten.gather.default: plan_gather,
    aten.scatter_reduce.two: plan_scatter_reduce,
}
