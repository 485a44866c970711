"""Layouts and redistributions as pictures of tensors: the element map of a layout, cut into drawable cells."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from spmd_lab.errors import LayoutError
from spmd_lab.records.layouts import axis_span, layout_record
from spmd_lab.show.grid_records import (
    CellRecord,
    ChangeRecord,
    GridRecord,
    PendingRecord,
    PlaceRecord,
    SegmentRecord,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spmd_lab.expand.values import Move, Redistribution
    from spmd_lab.layout import Layout

__all__ = ["change_record", "grid_record"]

MOST_DIMS, MOST_AXES = 6, 4
_MOST_CELLS, _MOST_SEGMENTS, _MOST_RANKS = 400, 16, 8


class _Part(NamedTuple):
    """Consecutive indices of one dim, and the index of its holders along each axis that divides the dim."""

    start: int
    stop: int
    holders: Mapping[str, int]


def grid_record(layout: Layout) -> GridRecord:
    """A layout as a grid of cells, each with the ranks that hold it.

    Raises
    ------
    LayoutError
        If the tensor has more than 6 dims, or the mesh more than 4 axes.
    """
    if len(layout.global_shape) > MOST_DIMS or layout.mesh.ndim > MOST_AXES:
        raise LayoutError(
            f"a tensor of {len(layout.global_shape)} dims on {layout.mesh.ndim} axes is too much for one picture",
            layouts={"tensor": layout},
            hint=f"pictures have up to {MOST_DIMS} dims and {MOST_AXES} axes",
        )
    parts = [_parts(layout, dim) for dim in range(len(layout.global_shape))]
    shown = _fitting(parts)
    dims = tuple(_segments(found, keep) for found, keep in zip(parts, shown, strict=True))
    drawn = [list(_drawn(found, keep)) for found, keep in zip(parts, shown, strict=True)]
    cells = tuple(
        _cell(layout, tuple(position for position, _ in chosen), [part for _, part in chosen])
        for chosen in itertools.product(*drawn)
    )
    return GridRecord(
        layout=layout_record(layout),
        dims=dims,
        cells=cells,
        pending=tuple(
            PendingRecord(kind, axis_span(layout.mesh, axis), layout.mesh.axis_size(axis))
            for axis, kind in layout.pending.items()
        ),
        remark=_remark(layout, parts, cells),
        alt=f"which rank holds what of {layout}",
    )


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


def _fitting(parts: list[list[_Part]]) -> list[int]:
    """How many parts of each dim are drawn, so that cells stay few: the dim with most gives way first."""
    shown = [len(found) for found in parts]
    while _product(shown) > _MOST_CELLS or max(shown, default=0) > _MOST_SEGMENTS:
        largest = max(range(len(shown)), key=shown.__getitem__)
        shown[largest] = max(2, shown[largest] // 2)
    return shown


def _product(numbers: list[int]) -> int:
    product = 1
    for each in numbers:
        product *= each
    return product


def _drawn(parts: list[_Part], keep: int) -> Iterator[tuple[int, _Part]]:
    """The parts that are drawn, with the position of their segment: the first ones, and the last."""
    yield from enumerate(parts[: keep - 1] if keep < len(parts) else parts)
    if keep < len(parts):
        yield keep, parts[-1]


def _segments(parts: list[_Part], keep: int) -> tuple[SegmentRecord, ...]:
    if keep >= len(parts):
        return tuple(SegmentRecord(part.start, part.stop) for part in parts)
    head = [SegmentRecord(part.start, part.stop) for part in parts[: keep - 1]]
    hidden = SegmentRecord(head[-1].stop if head else 0, parts[-1].start, hidden=True)
    return (*head, hidden, SegmentRecord(parts[-1].start, parts[-1].stop))


def _cell(layout: Layout, segments: tuple[int, ...], parts: list[_Part]) -> CellRecord:
    mesh = layout.mesh
    holders = {axis: index for part in parts for axis, index in part.holders.items()}
    places = tuple(
        PlaceRecord(axis_span(mesh, axis), holders[axis], mesh.axis_size(axis)) for axis in mesh.axes if axis in holders
    )
    return CellRecord(segments, places, _ranks(layout, holders))


def _ranks(layout: Layout, holders: Mapping[str, int]) -> tuple[int, ...]:
    """The ranks at these indices; none where they are too many to be named."""
    mesh = layout.mesh
    spans = [
        [holders[axis]] if axis in holders else range(size) for axis, size in zip(mesh.axes, mesh.shape, strict=True)
    ]
    if _product([len(span) for span in spans]) > _MOST_RANKS:
        return ()
    return tuple(mesh.rank(coordinate) for coordinate in itertools.product(*spans))


def _remark(layout: Layout, parts: list[list[_Part]], cells: tuple[CellRecord, ...]) -> str:
    """What no cell shows: who holds nothing, whole copies that are too many to name, parts left out."""
    told = []
    mesh = layout.mesh
    holding = {
        axis: {part.holders[axis] for found in parts for part in found if axis in part.holders} for axis in mesh.axes
    }
    for dim in range(len(layout.global_shape)):
        for split in layout.splits(dim):
            idle = [index for index in range(split.axis_size) if index not in holding[split.axis]]
            if idle:
                named = ", ".join(map(str, idle[:6])) + (", …" if len(idle) > 6 else "")
                told.append(f"{split.axis} {named}: nothing")
    free = [axis for axis, found in holding.items() if not found and axis not in layout.pending]
    if free and any(not cell.ranks for cell in cells):
        told.append(f"the same for every index of {', '.join(free)}")
    if _product([len(found) for found in parts]) > len(cells):
        told.append("… stands for parts that are not drawn")
    return "; ".join(told)


def change_record(change: Redistribution, rank: int) -> ChangeRecord:
    """A redistribution as pictures of its two ends; what a rank gets from others is marked.

    Raises
    ------
    MeshError
        If the mesh has no such rank.
    """
    before, after = grid_record(change.have), grid_record(change.need)
    coordinate = change.have.mesh.coordinate(rank)
    return ChangeRecord(
        before=before,
        after=_marked(change, after, coordinate),
        actions=tuple(_action(move) for move in change.moves),
        alt=f"{change.have} becomes {change.need}; what rank {rank} gets from others is hatched",
    )


def _action(move: Move) -> str:
    return f"{move.kind}({move.axis})" + ("" if move.is_collective else " local")


def _marked(change: Redistribution, after: GridRecord, coordinate: tuple[int, ...]) -> GridRecord:
    """The grid of a layout in which the cells are cut where a rank had a part of them before."""
    have, need = change.have, change.need
    if have.is_pending and have.pending != need.pending:
        cells = [_arriving(cell) if _holds(cell, need, coordinate) else cell for cell in after.cells]
        return _with_cells(after, after.dims, cells)
    dims = []
    for dim, segments in enumerate(after.dims):
        edges = {edge for run in have.runs(dim, coordinate) for edge in run}
        dims.append(tuple(itertools.chain.from_iterable(_cut(segment, edges) for segment in segments)))
    cells = []
    for cell in after.cells:
        ranges = [
            [
                (position, piece)
                for position, piece in enumerate(dims[dim])
                if after.dims[dim][chosen].start <= piece.start and piece.stop <= after.dims[dim][chosen].stop
            ]
            for dim, chosen in enumerate(cell.segments)
        ]
        for pieces in itertools.product(*ranges):
            part = CellRecord(tuple(position for position, _ in pieces), cell.places, cell.ranks)
            had = all(_held(have, dim, coordinate, piece) for dim, (_, piece) in enumerate(pieces))
            cells.append(part if had or not _holds(cell, need, coordinate) else _arriving(part))
    return _with_cells(after, tuple(dims), cells)


def _holds(cell: CellRecord, layout: Layout, coordinate: tuple[int, ...]) -> bool:
    """Whether the rank at a coordinate holds a cell."""
    where = dict(zip(layout.mesh.axes, coordinate, strict=True))
    return all(where[place.axis.text] == place.index for place in cell.places)


def _held(layout: Layout, dim: int, coordinate: tuple[int, ...], piece: SegmentRecord) -> bool:
    return any(start <= piece.start and piece.stop <= stop for start, stop in layout.runs(dim, coordinate))


def _cut(segment: SegmentRecord, edges: set[int]) -> Iterator[SegmentRecord]:
    inner = [] if segment.hidden else sorted(edge for edge in edges if segment.start < edge < segment.stop)
    bounds = [segment.start, *inner, segment.stop]
    for start, stop in itertools.pairwise(bounds):
        yield SegmentRecord(start, stop, segment.hidden)


def _arriving(cell: CellRecord) -> CellRecord:
    return CellRecord(cell.segments, cell.places, cell.ranks, arrives=True)


def _with_cells(grid: GridRecord, dims: tuple[tuple[SegmentRecord, ...], ...], cells: list[CellRecord]) -> GridRecord:
    return GridRecord(grid.layout, dims, tuple(cells), grid.pending, grid.remark, grid.alt)
