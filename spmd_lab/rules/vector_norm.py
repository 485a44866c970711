"""Norms of vectors: the powers of what each rank holds add up; the root is taken once.

Torch leaves such a norm to a placement of its own, whose pieces are norms, and which no other operator understands.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.layout import Layout
from spmd_lab.rules.never_empty import Shards, never_empty
from spmd_lab.rules.strategies import Way, aligned, choose_ways, pick
from spmd_lab.torch_internals.operators import has_argument

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx
    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.rules.plan import OpCall, Plan

__all__ = ["RULES"]

aten = torch.ops.aten


def plan_vector_norm(call: OpCall) -> Plan:
    """Plan ``linalg_vector_norm(self, ord, dim, keepdim, *, dtype)``, or ``norm`` with fewer of these arguments."""
    ndim, given = len(call.argument("self").layout.global_shape), _argument(call, "ord", _argument(call, "p", 2))
    order = 2.0 if given is None else float(given)
    summed = {dim % ndim for dim in _argument(call, "dim") or range(ndim)} if ndim else set()
    ways = [
        Way((Shard(dim),), (Shard(dim if _argument(call, "keepdim") else _place(dim, summed)),))
        for dim in range(ndim)
        if dim not in summed
    ]
    ways += [Way((Shard(dim),), made) for dim in sorted(summed) for made in _over_ranks(order)]
    return _planned(call, ways, order, summed)


def plan_dist(call: OpCall) -> Plan:
    """Plan ``dist(self, other, p)``: the norm of a difference."""
    first, other = call.has
    order = float(call.argument("p"))
    shape = torch.broadcast_shapes(first.global_shape, other.global_shape)
    placed = [tuple(aligned(tensor, dim, shape) for tensor in call.tensors) for dim in range(len(shape))]
    ways = [
        Way(needs, made)
        for needs in placed
        if not any(isinstance(need, Replicate) for need in needs)  # what is added to an empty shard must differ by 0
        for made in _over_ranks(order)
    ]
    return _planned(call, ways, order, set(range(len(shape))))


def _argument(call: OpCall, name: str, default: Any = None) -> Any:
    return call.argument(name) if has_argument(call.op, name) else default


def _over_ranks(order: float) -> list[tuple[Placement]]:
    """What comes of norms of pieces, if that is any placement."""
    kinds: dict[float, Placement] = {0.0: Partial("sum"), math.inf: Partial("max")}
    return [(kinds.get(order, Replicate()),)] if order >= 0 else []


def _planned(call: OpCall, ways: list[Way], order: float, summed: set[int]) -> Plan:
    plan = choose_ways(call, ways)
    dividing = {
        split.axis
        for need in plan.needs
        for dim in range(len(need.global_shape))
        if dim in summed
        for split in need.splits(dim)
    }
    axes = [axis for axis in call.mesh.axes if axis in dividing]
    added = axes if 0 < order < math.inf else []
    return replace(plan, emit=never_empty(plan.needs, plan.outputs, _root_of_sum(call, plan, order, added)))


def _place(dim: int, summed: set[int]) -> int:
    """Where a dim comes out when those that are summed are dropped."""
    return dim - sum(other < dim for other in summed)


def _root_of_sum(
    call: OpCall, plan: Plan, order: float, axes: list[str]
) -> Callable[[LocalGraphBuilder, Shards], fx.Node]:
    """Each rank's own norm; where several have a part, the root of the sum of their powers."""
    output = plan.outputs[0]
    assert output is not None
    wide = torch.promote_types(output.dtype, torch.float32)
    pending = [
        Layout(
            output.global_shape,
            wide,
            call.mesh,
            [
                Partial() if axis in axes[done:] else placement
                for axis, placement in zip(call.mesh.axes, output.placements, strict=True)
            ],
        )
        for done in range(len(axes) + 1)
    ]

    def run(builder: LocalGraphBuilder, shards: Shards) -> fx.Node:
        norm = builder.call(call.op, *pick(call.args, shards.nodes), **pick(call.kwargs, shards.nodes))
        if not axes:
            return norm
        power = builder.call(aten._to_copy.default, norm, dtype=wide)
        power = builder.call(aten.pow.Tensor_Scalar, power, order)
        for have, need, axis in zip(pending, pending[1:], axes, strict=False):
            power = builder.all_reduce(power, axis, have, need)
        root = builder.call(aten.pow.Tensor_Scalar, power, 1 / order)
        return builder.call(aten._to_copy.default, root, dtype=output.dtype)

    return run


RULES: dict[object, Callable[[OpCall], Plan]] = {
    aten.dist.default: plan_dist,
    aten.linalg_vector_norm.default: plan_vector_norm,
    aten.norm.Scalar: plan_vector_norm,
    aten.norm.ScalarOpt_dim: plan_vector_norm,
    aten.norm.ScalarOpt_dim_dtype: plan_vector_norm,
    aten.norm.ScalarOpt_dtype: plan_vector_norm,
}
