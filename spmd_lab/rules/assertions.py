"""Assertions on the values of tensors: each rank looks at what it holds; the whole is true where all shards are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.rules.strategies import Way, choose_ways

if TYPE_CHECKING:
    from collections.abc import Callable

    from spmd_lab.rules.plan import OpCall, Plan

__all__ = ["RULES"]

aten = torch.ops.aten


def plan_assertion(call: OpCall) -> Plan:
    """Plan ``_assert_async(self, message)`` of a single truth value."""
    return choose_ways(call, [Way((Partial(kind),), (Replicate(),)) for kind in ("product", "min")])


def plan_all_true(call: OpCall) -> Plan:
    """Plan ``_is_all_true(self)``: it is left pending, as an assertion takes it."""
    dims = range(len(call.has[0].global_shape))
    return choose_ways(call, [Way((Shard(dim),), (Partial("product"),)) for dim in dims], any_order=True)


RULES: dict[object, Callable[[OpCall], Plan]] = {
    aten._assert_async.default: plan_assertion,
    aten._assert_async.msg: plan_assertion,
    aten._is_all_true.default: plan_all_true,
}
