"""Layouts as pictures of tensors: the element map of a layout, cut into drawable cells."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from spmd_lab.errors import LayoutError
from spmd_lab.records.grid_words import grid_alt, remarks
from spmd_lab.records.layouts import axis_span, layout_record
from spmd_lab.show.grid_records import (
    CellRecord,
    GridRecord,
    PendingRecord,
    PlaceRecord,
    SegmentRecord,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spmd_lab.layout import Layout

__all__ = ["grid_record"]

MOST_DIMS, MOST_AXES = 6, 4
_MOST_COLUMNS, _MOST_ROWS, _MOST_RANKS = 16, 16, 8


class _Part(NamedTuple):
    """Consecutive indices of one dim, and the index of its holders along each axis that divides the dim."""

    start: int
    stop: int
    holders: Mapping[str, int]


def grid_record(layout: Layout, rank: int | None = None) -> GridRecord:
    """A layout as a grid of cells, each with the ranks that hold it.

    Parameters
    ----------
    layout : Layout
        The layout.
    rank : int, optional
        One whose cells are marked, and drawn also where others are left out.

    Raises
    ------
    LayoutError
        If the tensor has more than 6 dims, or the mesh more than 4 axes.
    """
    ndim = len(layout.global_shape)
    if ndim > MOST_DIMS or layout.mesh.ndim > MOST_AXES:
        raise LayoutError(
            f"a tensor of {ndim} dims on {layout.mesh.ndim} axes is too much for one picture",
            layouts={"tensor": layout},
            hint=f"pictures have up to {MOST_DIMS} dims and {MOST_AXES} axes",
        )
    coordinate = None if rank is None else dict(zip(layout.mesh.axes, layout.mesh.coordinate(rank), strict=True))
    parts = [_parts(layout, dim) for dim in range(ndim)]
    shown = [_chosen(found, keep, coordinate) for found, keep in zip(parts, _fitting(parts), strict=True)]
    drawn = [[found[position] for position in kept] for found, kept in zip(parts, shown, strict=True)]
    segments = [_segments(found, kept) for found, kept in zip(parts, shown, strict=True)]
    seen = [[place for place, each in enumerate(found) if not each.hidden] for found in segments]
    cells = tuple(
        _cell(layout, places, held, coordinate)
        for places, held in zip(itertools.product(*seen), itertools.product(*drawn), strict=True)
    )
    grid = GridRecord(
        layout=layout_record(layout),
        dims=tuple(segments),
        cells=cells,
        pending=tuple(
            PendingRecord(kind, axis_span(layout.mesh, axis), layout.mesh.axis_size(axis))
            for axis, kind in layout.pending.items()
        ),
        remarks=remarks(layout, parts, cells),
        alt="",
    )
    return replace(grid, alt=grid_alt(layout, grid, prod(map(len, parts))))


def _parts(layout: Layout, dim: int) -> list[_Part]:
    """The parts into which a dim is cut, in order."""
    size = layout.global_shape[dim]
    splits = layout.splits(dim)
    if not splits:
        return [_Part(0, size, {})]
    names = [split.axis for split in splits]
    found: list[_Part] = []
    for indices in itertools.product(*(range(split.axis_size) for split in splits)):
        holders = dict(zip(names, indices, strict=True))
        coordinate = tuple(holders.get(axis, 0) for axis in layout.mesh.axes)
        found.extend(_Part(start, stop, holders) for start, stop in layout.runs(dim, coordinate) if stop > start)
    return sorted(found, key=lambda part: part.start) or [_Part(0, size, {})]


def _fitting(parts: Sequence[Sequence[_Part]]) -> list[int]:
    """How many parts of each dim are drawn, so that rows and columns stay few: the dim with most gives way first.

    Every other dim runs across, the last one included.
    """
    shown = list(map(len, parts))
    for first, most in ((len(parts) - 1, _MOST_COLUMNS), (len(parts) - 2, _MOST_ROWS)):
        while prod(shown[dim] for dim in range(first, -1, -2)) > most:
            largest = max(range(first, -1, -2), key=shown.__getitem__)
            shown[largest] = max(2, min(shown[largest] // 2, most))
    return shown


def _chosen(parts: Sequence[_Part], keep: int, coordinate: Mapping[str, int] | None) -> list[int]:
    """The positions of the parts that are drawn: the first ones, some of a rank's own, and the last."""
    if keep >= len(parts):
        return list(range(len(parts)))
    own = [place for place, part in enumerate(parts) if coordinate is not None and _is_at(part.holders, coordinate)]
    kept = dict.fromkeys([len(parts) - 1, *own[: (keep + 1) // 2], *range(keep)])
    return sorted(list(kept)[:keep])


def _is_at(holders: Mapping[str, int], coordinate: Mapping[str, int]) -> bool:
    """Whether the rank at a coordinate is one of the holders."""
    return all(coordinate[axis] == index for axis, index in holders.items())


def _segments(parts: Sequence[_Part], kept: Sequence[int]) -> tuple[SegmentRecord, ...]:
    """The parts that are drawn, and one for those between two of them that are not."""
    found: list[SegmentRecord] = []
    for before, position in itertools.pairwise([-1, *kept]):
        part = parts[position]
        if position > before + 1:
            found.append(SegmentRecord(found[-1].stop if found else 0, part.start, hidden=True))
        found.append(SegmentRecord(part.start, part.stop))
    return tuple(found)


def _cell(
    layout: Layout, places: tuple[int, ...], parts: Sequence[_Part], coordinate: Mapping[str, int] | None
) -> CellRecord:
    mesh = layout.mesh
    holders = {axis: index for part in parts for axis, index in part.holders.items()}
    own = coordinate is not None and _is_at(holders, coordinate)
    stands = tuple(
        PlaceRecord(axis_span(mesh, axis), holders[axis], mesh.axis_size(axis)) for axis in mesh.axes if axis in holders
    )
    return CellRecord(places, stands, _ranks(layout, holders), own)


def _ranks(layout: Layout, holders: Mapping[str, int]) -> tuple[int, ...]:
    """The ranks at these indices; none where they are too many to be named."""
    mesh = layout.mesh
    spans = [
        [holders[axis]] if axis in holders else range(size) for axis, size in zip(mesh.axes, mesh.shape, strict=True)
    ]
    if prod(map(len, spans)) > _MOST_RANKS:
        return ()
    return tuple(mesh.rank(coordinate) for coordinate in itertools.product(*spans))
