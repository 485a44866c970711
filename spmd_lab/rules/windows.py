"""Windows on a tensor and their gradients: dims that a window does not move along may be divided.

A gradient is told the size of the tensor that the window was on: here that of its shard. All are linear.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import Partial, Shard

from spmd_lab.rules.never_empty import Shards, never_empty
from spmd_lab.rules.strategies import Way, choose_ways, pick
from spmd_lab.torch_internals.operators import has_argument, position_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import fx

    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.rules.plan import OpCall, Plan

__all__ = ["RULES"]

aten = torch.ops.aten


def plan_window(call: OpCall) -> Plan:
    """Plan an operator of one tensor by the dims that go through it as they are."""
    (layout,) = call.has
    (result,) = call.results
    assert result is not None
    ways = [
        Way((Shard(before),), (Shard(after),))
        for before, after in _THROUGH[call.op](call, len(layout.global_shape))
        if layout.global_shape[before] == result.shape[after]  # else it is stretched
    ]
    pending = [Way((kind,), (kind,)) for kind in (Partial("sum"), Partial("avg"))]
    plan = choose_ways(call, [*ways, *pending], any_order=True)
    (output,) = plan.outputs
    assert output is not None
    place = position_of(call.op, "input_sizes") if has_argument(call.op, "input_sizes") else None

    def run(builder: LocalGraphBuilder, shards: Shards) -> fx.Node:
        args = list(pick(call.args, shards.nodes))
        if place is not None:
            args[place] = list(builder.local_shape(output))
        return builder.call(call.op, *args, **pick(call.kwargs, shards.nodes))

    if place is None:
        return replace(plan, emit=never_empty(plan.needs, plan.outputs, run))
    return replace(plan, emit=lambda builder, nodes: run(builder, Shards(nodes, ())))


def _of_select_backward(call: OpCall, ndim: int) -> Iterator[tuple[int, int]]:
    selected = call.argument("dim") % (ndim + 1)
    return ((dim, dim + (dim >= selected)) for dim in range(ndim))


def _of_slice_backward(call: OpCall, ndim: int) -> Iterator[tuple[int, int]]:
    sliced = call.argument("dim") % ndim
    is_whole = call.has[0].global_shape[sliced] == call.argument("input_sizes")[sliced]
    return ((dim, dim) for dim in range(ndim) if dim != sliced or is_whole)


def _of_unfold(call: OpCall, ndim: int) -> Iterator[tuple[int, int]]:
    unfolded = call.argument("dimension") % max(ndim, 1)
    return ((dim, dim) for dim in range(ndim) if dim != unfolded)


def _of_unfold_backward(call: OpCall, ndim: int) -> Iterator[tuple[int, int]]:
    unfolded = call.argument("dim") % max(ndim - 1, 1)
    return ((dim, dim) for dim in range(ndim - 1) if dim != unfolded)


def _of_diagonal(call: OpCall, ndim: int) -> Iterator[tuple[int, int]]:
    crossed = {call.argument(name) % ndim for name in ("dim1", "dim2")}
    kept = (dim for dim in range(ndim) if dim not in crossed)
    return ((before, after) for after, before in enumerate(kept))


def _of_diagonal_backward(call: OpCall, ndim: int) -> Iterator[tuple[int, int]]:
    return ((after, before) for before, after in _of_diagonal(call, ndim + 1))


def _of_pixel_shuffle(_call: OpCall, ndim: int) -> Iterator[tuple[int, int]]:
    return ((dim, dim) for dim in range(ndim - 3))


_THROUGH: dict[object, Callable[[OpCall, int], Iterator[tuple[int, int]]]] = {
    aten.channel_shuffle.default: _of_pixel_shuffle,
    aten.diagonal.default: _of_diagonal,
    aten.diagonal_backward.default: _of_diagonal_backward,
    aten.diagonal_copy.default: _of_diagonal,
    aten.pixel_shuffle.default: _of_pixel_shuffle,
    aten.pixel_unshuffle.default: _of_pixel_shuffle,
    aten.select_backward.default: _of_select_backward,
    aten.slice_backward.default: _of_slice_backward,
    aten.unfold.default: _of_unfold,
    aten.unfold_backward.default: _of_unfold_backward,
    aten.unfold_copy.default: _of_unfold,
}
"""The dims, before and after, that each operator leaves as they are."""

RULES: dict[object, Callable[[OpCall], Plan]] = dict.fromkeys(_THROUGH, plan_window)
