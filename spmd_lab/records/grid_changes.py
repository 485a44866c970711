"""Redistributions as pictures of tensors: a layout before and after, and what one rank gets from others."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from spmd_lab.records.grids import grid_record
from spmd_lab.show.grid_records import ChangeRecord, GridRecord, SegmentRecord
from spmd_lab.show.units import count_text, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spmd_lab.expand.values import Move, Redistribution

    Runs = Sequence[tuple[int, int]]

__all__ = ["change_record"]

_MOST_CUTS = 32


def change_record(change: Redistribution, rank: int) -> ChangeRecord:
    """A redistribution as pictures of its two ends; what a rank holds, and what it gets from others, is marked.

    Raises
    ------
    MeshError
        If the mesh has no such rank.
    """
    have, need = change.have, change.need
    before, after = grid_record(have, rank), grid_record(need, rank)
    count, whole = _arriving(change, rank), prod(need.local_shape(rank))
    what = f"{count_text(count)} of its {counted(whole, 'element')}" if count else "nothing"
    told = f"rank {rank} gets {what} from others"
    if count:
        after = _marked(change, after, rank)
    after = _told(after, rank, f"hatched: {told}" if any(cell.arrives for cell in after.cells) else told)
    actions = tuple(map(_action, change.moves))
    alt = f"{have} becomes {need} on {have.mesh} by {', '.join(actions)}: {told}"
    return ChangeRecord(_told(before, rank), after, actions, alt)


def _action(move: Move) -> str:
    return f"{move.kind}({move.axis})" + ("" if move.is_collective else " local")


def _told(grid: GridRecord, rank: int, *remarks: str) -> GridRecord:
    """A grid that says what its marks mean."""
    own = [f"thick frame: rank {rank}"] if any(cell.own for cell in grid.cells) else []
    return replace(grid, remarks=(*own, *grid.remarks, *remarks))


def _arriving(change: Redistribution, rank: int) -> int:
    """How many of the elements that a rank needs it does not have: all, where a reduction is carried out."""
    coordinate = change.have.mesh.coordinate(rank)
    dims = range(len(change.need.global_shape))
    had = (
        0
        if _is_reduced(change)
        else prod(_in_common(change.have.runs(dim, coordinate), change.need.runs(dim, coordinate)) for dim in dims)
    )
    return prod(change.need.local_shape(rank)) - had


def _is_reduced(change: Redistribution) -> bool:
    """Whether the numbers that come of it are made of those of several ranks."""
    have, need, mesh = change.have.pending, change.need.pending, change.have.mesh
    return any(need.get(axis) != kind and mesh.axis_size(axis) > 1 for axis, kind in have.items())


def _in_common(some: Runs, others: Runs) -> int:
    """How many indices are in both."""
    left, right = sorted(some), sorted(others)
    count = one = two = 0
    while one < len(left) and two < len(right):
        count += max(0, min(left[one][1], right[two][1]) - max(left[one][0], right[two][0]))
        if left[one][1] < right[two][1]:
            one += 1
        else:
            two += 1
    return count


def _marked(change: Redistribution, after: GridRecord, rank: int) -> GridRecord:
    """The grid of a layout in which the cells are cut where a rank had a part of them before."""
    if _is_reduced(change):
        return replace(after, cells=tuple(replace(cell, arrives=cell.own) for cell in after.cells))
    coordinate = change.have.mesh.coordinate(rank)
    runs = [change.have.runs(dim, coordinate) for dim in range(len(after.dims))]
    pieces = [_cut(segments, held) for segments, held in zip(after.dims, runs, strict=True)]
    starts = [list(itertools.accumulate(map(len, found), initial=0)) for found in pieces]
    dims = tuple(tuple(itertools.chain.from_iterable(found)) for found in pieces)
    cells = []
    for cell in after.cells:
        spans = [range(starts[dim][at], starts[dim][at + 1]) for dim, at in enumerate(cell.segments)]
        for places in itertools.product(*spans):
            had = all(_is_held(dims[dim][place], runs[dim]) for dim, place in enumerate(places))
            cells.append(replace(cell, segments=places, arrives=cell.own and not had))
    return replace(after, dims=dims, cells=tuple(cells))


def _cut(segments: Sequence[SegmentRecord], runs: Runs) -> list[list[SegmentRecord]]:
    """Each segment in pieces, cut where a run starts or ends; whole where there would be too many."""
    edges = sorted({edge for run in runs for edge in run})
    found = [[edge for edge in edges if each.start < edge < each.stop and not each.hidden] for each in segments]
    if sum(map(len, found)) > _MOST_CUTS:
        found = [[] for _ in segments]
    return [
        [SegmentRecord(*bounds, each.hidden) for bounds in itertools.pairwise([each.start, *inner, each.stop])]
        for each, inner in zip(segments, found, strict=True)
    ]


def _is_held(piece: SegmentRecord, runs: Runs) -> bool:
    return any(start <= piece.start and piece.stop <= stop for start, stop in runs)
