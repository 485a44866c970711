"""Views whose division by torch's own rule does not work out: uneven shards of dims that are merged or split.

Six rows on four ranks, merged with five columns, would be pieces of ten, ten, ten and none of thirty: no placement says
so. Such an axis divides another dim instead, one that goes through the view as it is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.rules.plan import Plan
from spmd_lab.rules.stock import plan_by_stock_rule
from spmd_lab.torch_internals.placements import StridedShard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import fx
    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.layout import Layout
    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.rules.plan import OpCall

__all__ = ["RULES"]

aten = torch.ops.aten


def plan_view(call: OpCall) -> Plan:
    """Plan ``view(self, size)`` as torch does, unless that would gather what can stay divided."""
    (layout,), (result,) = call.has, call.results
    assert result is not None
    taken: list[Placement | tuple[int, int]]
    if result.numel() == 0:  # torch's own rule may look for its dims for ever; and to gather nothing costs nothing
        taken = [Replicate()] * layout.mesh.ndim
    else:
        plan = plan_by_stock_rule(call)
        if plan.fallback is None:
            return plan
        taken = _divided(layout, list(_leading_dims(layout.global_shape, result.shape)), result.shape)
    need = layout.with_placements([Shard(each[0]) if isinstance(each, tuple) else each for each in taken])
    (output,) = call.output_layouts([[Shard(each[1]) if isinstance(each, tuple) else each for each in taken]])
    assert output is not None

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> fx.Node:
        return builder.call(aten.reshape.default, nodes[0], list(builder.local_shape(output)))

    return Plan((need,), (output,), emit)


def _leading_dims(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Pairs of dims, before and after, that lead the same elements: as many stand before them, so many after them."""
    starts = {math.prod(after[:place]): place for place in reversed(range(len(after))) if after[place] != 1}
    for dim, size in enumerate(before):
        place = starts.get(math.prod(before[:dim]))
        if size != 1 and place is not None:
            yield dim, place


def _divided(
    layout: Layout, leading: Sequence[tuple[int, int]], after: Sequence[int]
) -> list[Placement | tuple[int, int]]:
    """For each axis a pair of dims that it divides, or a placement that goes through; axes stay where they can."""
    mesh, before = layout.mesh, layout.global_shape
    parts = dict.fromkeys(leading, 1)

    def can_divide(pair: tuple[int, int], axis: str) -> bool:
        """Whole blocks on every rank, or a dim that stays as it is, by this axis alone if not evenly."""
        if pair not in parts:
            return False
        count = parts[pair] * mesh.axis_size(axis)
        return (before[pair[0]] == after[pair[1]]) or (before[pair[0]] % count == 0 and after[pair[1]] % count == 0)

    taken: list[Placement | tuple[int, int]] = []
    for axis, placement in zip(mesh.axes, layout.placements, strict=True):
        if isinstance(placement, (Replicate, Partial)):
            taken.append(placement)
            continue
        is_plain = not isinstance(placement, StridedShard)
        own = [pair for pair in leading if is_plain and isinstance(placement, Shard) and pair[0] == placement.dim]
        pair = next((each for each in (*own, *reversed(leading)) if can_divide(each, axis)), None)
        if pair is None:
            taken.append(Replicate())
        else:
            parts[pair] *= mesh.axis_size(axis)
            taken.append(pair)
    return taken


RULES: dict[object, Callable[[OpCall], Plan]] = {
    aten._unsafe_view.default: plan_view,
    aten.view.default: plan_view,
}
