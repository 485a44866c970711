"""The order in which several axes divide a dim, kept through an operator that does not mind which elements it gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch.distributed.tensor import Shard

from spmd_lab.torch_internals.placements import StridedShard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.rules.plan import OpCall
    from spmd_lab.rules.strategies import Way

__all__ = ["in_the_order_at_hand"]


class _Dim(NamedTuple):
    """A dim of a tensor that is read (first ones) or of an output (after those), by position."""

    place: int
    dim: int


def in_the_order_at_hand(call: OpCall, chosen: Sequence[Way]) -> list[Way]:
    """The same ways, one per mesh axis, but with dims divided in the order that a tensor already has.

    The order is kept where the same axes divide the same dims of every tensor concerned, and these have one size: then
    every rank has the same elements of all of them.
    """
    placed = [[*way.needs, *way.outputs] for way in chosen]
    for tensor in call.tensors:
        for dim in range(len(tensor.layout.global_shape)):
            if any(split.split_factor != 1 for split in tensor.layout.splits(dim)):
                _keep_order(call, placed, tensor.layout.placements, _Dim(tensor.index, dim))
    count = len(call.tensors)
    return [
        way._replace(needs=tuple(row[:count]), outputs=tuple(row[count:]))
        for way, row in zip(chosen, placed, strict=True)
    ]


def _keep_order(call: OpCall, placed: list[list[Placement]], at_hand: tuple[Placement, ...], first: _Dim) -> None:
    """Divide one dim, and all that are divided along with it, as it is at hand."""
    having = [isinstance(each, (Shard, StridedShard)) and each.dim == first.dim for each in at_hand]
    divided_along = [_divided_by(row) for row in placed]
    together = next((dims for dims, has in zip(divided_along, having, strict=True) if has), frozenset())
    is_same = all(
        dims == together if has else not dims & together for dims, has in zip(divided_along, having, strict=True)
    )
    if first not in together or not is_same or len({_size(call, each) for each in together}) > 1:
        return
    for row, has, placement in zip(placed, having, at_hand, strict=True):
        if has:
            for each in together:
                row[each.place] = _on_dim(placement, each.dim)


def _on_dim(placement: Placement, dim: int) -> Placement:
    if isinstance(placement, StridedShard):
        return StridedShard(dim, split_factor=placement.split_factor)
    return Shard(dim)


def _divided_by(row: list[Placement]) -> frozenset[_Dim]:
    return frozenset(_Dim(place, each.dim) for place, each in enumerate(row) if isinstance(each, (Shard, StridedShard)))


def _size(call: OpCall, dim: _Dim) -> int:
    """How many elements a dim has."""
    count = len(call.tensors)
    if dim.place < count:
        return call.tensors[dim.place].layout.global_shape[dim.dim]
    result = call.results[dim.place - count]
    return -1 if result is None else int(result.shape[dim.dim])
