"""Pools and changes of resolution: images are independent, and so are their channels.

The dims that an image is pooled along stay whole. What is linear takes pending sums as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.rules.never_empty import Shards, never_empty
from spmd_lab.rules.strategies import Way, choose_ways, pick
from spmd_lab.torch_internals.operators import OpOverload, position_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.rules.plan import OpCall, Plan

__all__ = ["RULES"]

aten = torch.ops.aten


class _Pool(NamedTuple):
    """How many dims an operator pools along, and the argument that it is linear in."""

    pooled: int
    linear: str | None


def plan_pool(call: OpCall) -> Plan:
    """Plan an operator all of whose tensors are images with the same leading dims: batch, if there is one, channels."""
    pooled, linear = _POOLS[call.op]
    ndim = len(call.tensors[0].layout.global_shape)
    count, several = len(call.tensors), len(call.results)
    ways = [Way((Shard(dim),) * count, (Shard(dim),) * several) for dim in range(ndim - pooled)]
    if linear is not None:
        index = call.argument(linear).index
        ways += [
            Way(tuple(kind if other == index else Replicate() for other in range(count)), (kind,) * several)
            for kind in (Partial("sum"), Partial("avg"))
        ]
    plan = choose_ways(call, ways)
    return replace(plan, emit=never_empty(plan.needs, plan.outputs, _with_local_sizes(call, ndim - pooled)))


def _with_local_sizes(call: OpCall, leading: int) -> Callable[[LocalGraphBuilder, Shards], fx.Node]:
    """The operator on shards; where it is told the size of its input, that of the shard."""

    def run(builder: LocalGraphBuilder, shards: Shards) -> fx.Node:
        args = list(pick(call.args, shards.nodes))
        position = _position_of_input_size(call.op)
        if position is not None:
            args[position] = [*shards.shapes[0][:leading], *args[position][leading:]]
        return builder.call(call.op, *args, **pick(call.kwargs, shards.nodes))

    return run


def _position_of_input_size(op: OpOverload) -> int | None:
    try:
        return position_of(op, "input_size")
    except KeyError:
        return None


def plan_grid_sampler(call: OpCall) -> Plan:
    """Plan ``grid_sampler``, forward or backward: a grid belongs to an image, and is shared by its channels."""
    grid = call.argument("grid")
    is_backward = len(call.results) == 2
    images = Way((Shard(0),) * len(call.tensors), (Shard(0),) * len(call.results))
    by_channel = tuple(Replicate() if tensor is grid else Shard(1) for tensor in call.tensors)
    channels = Way(by_channel, (Shard(1), Partial()) if is_backward else (Shard(1),))
    plan = choose_ways(call, [images, channels])

    def run(builder: LocalGraphBuilder, shards: Shards) -> fx.Node:
        return builder.call(call.op, *pick(call.args, shards.nodes))

    return replace(plan, emit=never_empty(plan.needs, plan.outputs, run))


def _overload(name: str) -> OpOverload:
    return getattr(aten, name).default  # type: ignore[no-any-return]


_POOLS: dict[object, _Pool] = {
    **{_overload(f"max_pool{n}d_with_indices"): _Pool(n, None) for n in (2, 3)},
    **{_overload(f"max_pool{n}d_with_indices_backward"): _Pool(n, "grad_output") for n in (2, 3)},
    **{_overload(f"avg_pool{n}d"): _Pool(n, "self") for n in (2, 3)},
    **{_overload(f"avg_pool{n}d_backward"): _Pool(n, "grad_output") for n in (2, 3)},
    **{_overload(f"_adaptive_avg_pool{n}d"): _Pool(n, "self") for n in (2, 3)},
    **{_overload(f"_adaptive_avg_pool{n}d_backward"): _Pool(n, "grad_output") for n in (2, 3)},
    **{_overload(f"adaptive_max_pool{n}d"): _Pool(n, None) for n in (2, 3)},
    **{_overload(f"adaptive_max_pool{n}d_backward"): _Pool(n, "grad_output") for n in (2, 3)},
    **{_overload(f"max_unpool{n}d"): _Pool(n, "self") for n in (2, 3)},
    **{
        _overload(f"{kind}_backward"): _Pool(n, "grad_output")
        for n, kinds in {
            1: ("upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_linear1d"),
            2: ("upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_bilinear2d", "upsample_bicubic2d"),
            3: ("upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_trilinear3d"),
        }.items()
        for kind in kinds
    },
    aten.upsample_linear1d.default: _Pool(1, "self"),
    aten.upsample_trilinear3d.default: _Pool(3, "self"),
}  # fmt: skip

RULES: dict[object, Callable[[OpCall], Plan]] = {
    **dict.fromkeys(_POOLS, plan_pool),
    aten.grid_sampler_2d.default: plan_grid_sampler,
    aten.grid_sampler_3d.default: plan_grid_sampler,
    aten.grid_sampler_2d_backward.default: plan_grid_sampler,
    aten.grid_sampler_3d_backward.default: plan_grid_sampler,
}
