"""The nodes that make one move of a redistribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import Shard

from spmd_lab.elements import chunk_size, held_runs, runs_length
from spmd_lab.expand.redistribute import opaque_dims
from spmd_lab.local_graph import padded_size
from spmd_lab.torch_internals.placements import StridedShard

if TYPE_CHECKING:
    from torch import fx

    from spmd_lab.expand.values import Move
    from spmd_lab.layout import Layout
    from spmd_lab.local_graph import LocalGraphBuilder

__all__ = ["emit_move"]

aten = torch.ops.aten


def emit_move(builder: LocalGraphBuilder, x: fx.Node, move: Move) -> fx.Node:
    """Append the nodes of one move.

    Uneven pieces are padded to equal ones before they travel, on every rank, and cut afterwards, so that all ranks
    run the same nodes.
    """
    match move.kind:
        case "all_reduce":
            return builder.all_reduce(x, move.axis, move.before, move.after)
        case "all_gather":
            return _emit_all_gather(builder, x, move)
        case "reduce_scatter":
            return _emit_reduce_scatter(builder, x, move)
        case "all_to_all":
            return _emit_all_to_all(builder, x, move)
        case "slice":
            return _emit_slice(builder, x, move)
        case "split_pending":
            return _emit_split_pending(builder, x, move)


def _divided_dim(layout: Layout, axis: str) -> int:
    placement = layout.placements[layout.mesh.axis_index(axis)]
    assert isinstance(placement, (Shard, StridedShard))
    return int(placement.dim)


def _is_opaque(layout: Layout, dim: int) -> bool:
    return dim in opaque_dims(layout)


def _emit_all_gather(builder: LocalGraphBuilder, x: fx.Node, move: Move) -> fx.Node:
    dim = _divided_dim(move.before, move.axis)
    ndim = len(move.before.global_shape)
    if _is_opaque(move.before, dim):
        return _emit_block_gather(builder, x, move, dim)
    if move.axis not in move.before.uneven_axes:
        return builder.all_gather(x, dim, move.axis, move.before, move.after)
    length, piece = padded_size(move.after, builder, dim, move.axis)
    mine = builder.local_shape(move.before)[dim]
    gathered = builder.all_gather(builder.pad(x, ndim, dim, piece - mine), dim, move.axis, move.before, move.after)
    return builder.narrow(gathered, dim, 0, length)


def _emit_reduce_scatter(builder: LocalGraphBuilder, x: fx.Node, move: Move) -> fx.Node:
    dim = _divided_dim(move.after, move.axis)
    if move.axis not in move.after.uneven_axes:
        return builder.reduce_scatter(x, dim, move.axis, move.before, move.after)
    length, piece = padded_size(move.before, builder, dim, move.axis)
    total = piece * builder.mesh.axis_size(move.axis)
    padded = builder.pad(x, len(move.after.global_shape), dim, total - length)
    scattered = builder.reduce_scatter(padded, dim, move.axis, move.before, move.after)
    return builder.narrow(scattered, dim, 0, builder.local_shape(move.after)[dim])


def _emit_all_to_all(builder: LocalGraphBuilder, x: fx.Node, move: Move) -> fx.Node:
    gather_dim, shard_dim = _divided_dim(move.before, move.axis), _divided_dim(move.after, move.axis)
    ndim = len(move.before.global_shape)
    uneven = move.before.uneven_axes | move.after.uneven_axes
    if move.axis not in uneven:
        return builder.all_to_all(x, gather_dim, shard_dim, move.axis, move.before, move.after)
    gathered = builder.local_shape(move.after)[gather_dim]
    held, piece = builder.local_shape(move.before), chunk_size(gathered, builder.mesh.axis_size(move.axis))
    shard_length = held[shard_dim]
    shard_piece = chunk_size(shard_length, builder.mesh.axis_size(move.axis))
    padded = builder.pad(x, ndim, gather_dim, piece - held[gather_dim])
    padded = builder.pad(padded, ndim, shard_dim, shard_piece * builder.mesh.axis_size(move.axis) - shard_length)
    swapped = builder.all_to_all(padded, gather_dim, shard_dim, move.axis, move.before, move.after)
    swapped = builder.narrow(swapped, gather_dim, 0, gathered)
    return builder.narrow(swapped, shard_dim, 0, builder.local_shape(move.after)[shard_dim])


def _emit_slice(builder: LocalGraphBuilder, x: fx.Node, move: Move) -> fx.Node:
    dim = _divided_dim(move.after, move.axis)
    length = builder.local_shape(move.before)[dim]
    if not _is_opaque(move.after, dim):
        return builder.narrow(x, dim, *builder.chunk_bounds(length, move.axis))
    split = next(each for each in move.after.splits(dim) if each.axis == move.axis)
    runs = held_runs(length, (split,), (builder.index(move.axis),))
    name = f"elements_{length}_{split.axis_size}_{split.split_factor}_{builder.index(move.axis)}"
    return builder.call(aten.index_select.default, x, dim, builder.constant(name, _positions(runs)))


def _emit_block_gather(builder: LocalGraphBuilder, x: fx.Node, move: Move, dim: int) -> fx.Node:
    """Gather the pieces of a division into blocks, and bring their elements into order."""
    split = next(each for each in move.before.splits(dim) if each.axis == move.axis)
    length = builder.local_shape(move.after)[dim]
    held = [_positions(held_runs(length, (split,), (index,))) for index in range(split.axis_size)]
    largest = max(len(positions) for positions in held)
    if move.axis in move.before.uneven_axes:
        missing = largest - len(held[builder.index(move.axis)])
        x = builder.pad(x, len(move.before.global_shape), dim, missing)
    gathered = builder.all_gather(x, dim, move.axis, move.before, move.after)
    where = torch.empty(length, dtype=torch.int64)
    for index, positions in enumerate(held):
        where[positions] = torch.arange(len(positions)) + index * largest
    name = f"order_{length}_{split.axis_size}_{split.split_factor}"
    return builder.call(aten.index_select.default, gathered, dim, builder.constant(name, where))


def _positions(runs: tuple[tuple[int, int], ...]) -> torch.Tensor:
    positions = torch.empty(runs_length(runs), dtype=torch.int64)
    done = 0
    for start, stop in runs:
        positions[done : done + stop - start] = torch.arange(start, stop)
        done += stop - start
    return positions


def _emit_split_pending(builder: LocalGraphBuilder, x: fx.Node, move: Move) -> fx.Node:
    """Make a whole tensor into pieces of a pending reduction that give it back."""
    kind = move.after.pending[move.axis]
    if kind in ("avg", "max", "min"):
        return x
    size = builder.mesh.axis_size(move.axis)
    if kind == "sum" and (move.after.dtype.is_floating_point or move.after.dtype.is_complex):
        return builder.call(aten.div.Tensor, x, size)
    keeps = int(builder.index(move.axis) == 0)
    return builder.call(aten.mul.Tensor if kind == "sum" else aten.pow.Tensor_Scalar, x, keeps)
