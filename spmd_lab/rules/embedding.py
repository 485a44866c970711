"""Embeddings: a table divided by rows looks up the rows it has, and leaves the others to a pending sum.

Torch keeps the mask of such a look-up inside the placement, where two embeddings can overwrite each other's. Here the
mask is part of the local program: rows that a rank does not hold become zeros, and the output is a plain pending sum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.rules.strategies import Way, choose_ways

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

    from spmd_lab.layout import Layout
    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.rules.plan import OpCall, Plan

__all__ = ["RULES"]

aten = torch.ops.aten


def plan_embedding(call: OpCall) -> Plan:
    """Plan ``embedding(weight, indices)``: by indices, by columns, or by rows with a pending sum."""
    indices = call.argument("indices").layout
    last = len(indices.global_shape)
    ways = [Way((Replicate(), Shard(dim)), (Shard(dim),)) for dim in range(last)]
    ways += [Way((Shard(1), Replicate()), (Shard(last),)), Way((Shard(0), Replicate()), (Partial(),))]
    plan = choose_ways(call, ways)
    weight = plan.needs[0]
    return replace(plan, emit=_look_up_own_rows(call, weight)) if weight.splits(0) else plan


def _look_up_own_rows(call: OpCall, weight: Layout) -> Callable[[LocalGraphBuilder, tuple[fx.Node, ...]], fx.Node]:
    """The local program of a table divided by rows."""

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> fx.Node:
        table, indices = nodes
        for split in weight.splits(0):
            builder.index(split.axis)
        runs = weight.runs(0, builder.coordinate)
        start, stop = runs[0] if runs else (0, 0)
        if weight.uneven_axes:
            table = builder.pad(table, 2, 0, int(start == stop))
        here = builder.call(aten.sub.Tensor, indices, start)
        absent = builder.call(
            aten.logical_or.default,
            builder.call(aten.lt.Scalar, here, 0),
            builder.call(aten.ge.Scalar, here, stop - start),
        )
        row = builder.call(aten.masked_fill.Scalar, here, absent, 0)
        found = builder.call(call.op, table, row)
        return builder.call(aten.masked_fill.Scalar, found, builder.call(aten.unsqueeze.default, absent, -1), 0)

    return emit


def plan_embedding_backward(call: OpCall) -> Plan:
    """Plan ``embedding_dense_backward(grad, indices, …)``: by columns, by indices (pending), or piece by piece."""
    indices = call.argument("indices").layout
    last = len(indices.global_shape)
    ways = [Way((Shard(last), Replicate()), (Shard(1),)), Way((Partial(), Replicate()), (Partial(),))]
    if not call.argument("scale_grad_by_freq"):
        ways += [Way((Shard(dim), Shard(dim)), (Partial(),)) for dim in range(last)]
    return choose_ways(call, ways)


RULES: dict[object, Callable[[OpCall], Plan]] = {
    aten.embedding.default: plan_embedding,
    aten.embedding_dense_backward.default: plan_embedding_backward,
}
