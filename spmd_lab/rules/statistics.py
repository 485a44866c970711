"""Means, variances and standard deviations: shards count by the number of elements that they hold."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.rules.never_empty import Shards, never_empty
from spmd_lab.rules.reductions import axes_dividing, global_moments, wide_dtype
from spmd_lab.rules.strategies import Way, choose_ways, pick

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx
    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.rules.plan import OpCall, Plan

__all__ = ["RULES"]

aten = torch.ops.aten


def plan_mean(call: OpCall) -> Plan:
    """Plan ``mean``: over divided dims it is a pending sum of local sums, each over the count of the whole."""
    ways = [*_ways(call, Partial()), *(Way((kind,), (kind,)) for kind in (Partial("sum"), Partial("avg")))]
    plan = choose_ways(call, ways, any_order=True)
    (need,), (output,), dims = plan.needs, plan.outputs, _reduced_dims(call)
    count = math.prod(need.global_shape[dim] for dim in dims)
    if output is None or not count or not axes_dividing(need, dims):
        return plan

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> fx.Node:
        wide = wide_dtype(output.dtype)
        total = builder.call(aten.sum.dim_IntList, nodes[0], dims, _keeps_dims(call), dtype=wide)
        mean = builder.call(aten.div.Tensor, total, count)
        return mean if output.dtype == wide else builder.call(aten._to_copy.default, mean, dtype=output.dtype)

    return replace(plan, emit=emit)


def plan_variance(call: OpCall) -> Plan:
    """Plan ``var``, ``std`` and the like: shards add up their squared distances from the common mean."""
    plan = choose_ways(call, _ways(call, Replicate()), any_order=True)
    need, dims = plan.needs[0], _reduced_dims(call)
    if not axes_dividing(need, dims) or not math.prod(need.global_shape[dim] for dim in dims):

        def run_alone(builder: LocalGraphBuilder, shards: Shards) -> fx.Node:
            return builder.call(call.op, *pick(call.args, shards.nodes), **pick(call.kwargs, shards.nodes))

        return replace(plan, emit=never_empty(plan.needs, plan.outputs, run_alone))
    return replace(plan, emit=never_empty(plan.needs, plan.outputs, _from_moments(call, plan, dims)))


def _from_moments(call: OpCall, plan: Plan, dims: list[int]) -> Callable[[LocalGraphBuilder, Shards], fx.Node]:
    need = plan.needs[0]
    count = math.prod(need.global_shape[dim] for dim in dims)
    correction = call.argument("correction")
    freedom = max(count - (1 if correction is None else correction), 0)
    is_deviation, gives_mean = "std" in call.op.__name__, call.gives_several

    def run(builder: LocalGraphBuilder, shards: Shards) -> fx.Node:
        x = builder.call(aten._to_copy.default, shards.nodes[0], dtype=wide_dtype(need.dtype))
        mean, squares = global_moments(builder, x, need, dims)
        spread = builder.call(aten.div.Tensor, squares, freedom)
        if is_deviation:
            spread = builder.call(aten.sqrt.default, spread)
        made = [_finished(builder, spread, call, dims, 0)]
        if gives_mean:
            made.append(_finished(builder, mean, call, dims, 1))
        return tuple(made) if gives_mean else made[0]  # type: ignore[return-value]

    return run


def _finished(builder: LocalGraphBuilder, x: fx.Node, call: OpCall, dims: list[int], index: int) -> fx.Node:
    """An output in the dtype and with the dims that the operator gives it."""
    result = call.results[index]
    assert result is not None
    if not _keeps_dims(call):
        x = builder.call(aten.squeeze.dims, x, dims)
    return builder.call(aten._to_copy.default, x, dtype=result.dtype)


def _ways(call: OpCall, over_ranks: Placement) -> list[Way]:
    """One way per dim: those that are reduced end as ``over_ranks``, others stay divided."""
    reduced, several = _reduced_dims(call), len(call.results)
    ways = []
    for dim in range(len(call.has[0].global_shape)):
        place = dim if _keeps_dims(call) else dim - sum(other < dim for other in reduced)
        ways.append(Way((Shard(dim),), (over_ranks if dim in reduced else Shard(place),) * several))
    return ways


def _reduced_dims(call: OpCall) -> list[int]:
    ndim = len(call.has[0].global_shape)
    given = None if call.op is aten.mean.default else call.argument("dim")
    given = [given] if isinstance(given, int) else given
    return sorted({dim % ndim for dim in given or range(ndim)}) if ndim else []


def _keeps_dims(call: OpCall) -> bool:
    return call.op is not aten.mean.default and bool(call.argument("keepdim"))


RULES: dict[object, Callable[[OpCall], Plan]] = {
    aten.mean.default: plan_mean,
    aten.mean.dim: plan_mean,
    aten.std.correction: plan_variance,
    aten.std_mean.correction: plan_variance,
    aten.var.correction: plan_variance,
    aten.var_mean.correction: plan_variance,
}
