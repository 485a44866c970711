"""What the picture of a tensor says in words: beside its cells, and to those who do not see it."""

from __future__ import annotations

import itertools
from math import prod
from typing import TYPE_CHECKING

from spmd_lab.show.units import count_text, counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Protocol

    from spmd_lab.layout import Layout
    from spmd_lab.show.grid_records import CellRecord, GridRecord, SegmentRecord

    class Part(Protocol):
        """Consecutive indices of one dim, by the index of their holders along each axis that divides the dim."""

        @property
        def holders(self) -> Mapping[str, int]: ...


__all__ = ["grid_alt", "remarks"]

_MOST_TOLD = 6


def remarks(layout: Layout, parts: Sequence[Sequence[Part]], cells: Sequence[CellRecord]) -> tuple[str, ...]:
    """What no cell shows: who holds nothing, whole copies that are too many to name, parts left out."""
    told = []
    if 0 in layout.global_shape:
        told.append("it has no elements: what a rank holds is empty")
    else:
        told += [each for dim, found in enumerate(parts) for each in _idle(layout, dim, found)]
    divided = {axis for found in parts for part in found for axis in part.holders}
    free = [axis for axis in layout.mesh.axes if axis not in divided and axis not in layout.pending]
    if free and divided and any(not cell.ranks for cell in cells):
        told.append(f"the same for every index of {', '.join(free)}")
    if prod(map(len, parts)) > len(cells):
        told.append("… stands for parts that are not drawn")
    return tuple(told)


def _idle(layout: Layout, dim: int, parts: Sequence[Part]) -> Iterator[str]:
    """Which indices of the axes that divide a dim have no part of it: those of an axis alone, then of several."""
    splits = layout.splits(dim)
    names = [split.axis for split in splits]
    busy = {tuple(part.holders[name] for name in names) for part in parts}
    left = [at for at in itertools.product(*(range(split.axis_size) for split in splits)) if at not in busy]
    for place, split in enumerate(splits):
        idle = sorted(set(range(split.axis_size)) - {at[place] for at in busy})
        if idle:
            yield f"{split.axis} {_listed(idle)}: nothing"
        left = [at for at in left if at[place] not in idle]
    for at in left[:_MOST_TOLD]:
        yield f"{' '.join(f'{name} {index}' for name, index in zip(names, at, strict=True))}: nothing"
    if len(left) > _MOST_TOLD:
        yield f"{count_text(len(left) - _MOST_TOLD)} others: nothing"


def _listed(numbers: Sequence[int]) -> str:
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers[:_MOST_TOLD])) + (", …" if len(numbers) > _MOST_TOLD else "")


def grid_alt(layout: Layout, grid: GridRecord, count: int) -> str:
    """The picture in words: the first of so many parts, with their holders, and what is said below."""
    told = [_part(grid.dims, cell) for cell in grid.cells[:_MOST_TOLD]]
    if count > len(told):
        told.append(counted(count - len(told), "more part"))
    told += [each.text for each in grid.pending]
    told += [each for each in grid.remarks if not each.startswith("…")]
    return f"which rank holds what of {layout} on {layout.mesh}: {'; '.join(told)}"


def _part(dims: Sequence[Sequence[SegmentRecord]], cell: CellRecord) -> str:
    where = ", ".join(segments[place].text for segments, place in zip(dims, cell.segments, strict=True))
    noun = "" if not cell.ranks else "rank " if len(cell.ranks) == 1 else "ranks "
    holds = "holds" if len(cell.ranks) == 1 else "hold"
    return f"{noun}{cell.holders} {holds} [{where}]"
