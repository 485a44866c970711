"""The plain records of pictures of tensors: which rank holds which part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spmd_lab.show.part_records import LayoutRecord, Span

__all__ = ["CellRecord", "ChangeRecord", "GridRecord", "PendingRecord", "PlaceRecord", "SegmentRecord"]


@dataclass(frozen=True)
class SegmentRecord:
    """Consecutive indices of one dim that the same ranks hold; ``hidden`` stands for several that are not drawn."""

    start: int
    stop: int
    hidden: bool = False

    @property
    def text(self) -> str:
        """``4:8``, as a slice."""
        return "…" if self.hidden else f"{self.start}:{self.stop}"


@dataclass(frozen=True)
class PlaceRecord:
    """An index along one axis, out of ``count``."""

    axis: Span
    index: int
    count: int


@dataclass(frozen=True)
class CellRecord:
    """One part of a tensor: a segment of each dim, where its holders stand, and their numbers where these are few.

    ``arrives`` marks what a rank did not hold before, in the picture of a change.
    """

    segments: tuple[int, ...]
    places: tuple[PlaceRecord, ...]
    ranks: tuple[int, ...]
    arrives: bool = False


@dataclass(frozen=True)
class PendingRecord:
    """A reduction that has not been carried out: the ranks of ``axis`` hold one of ``count`` pieces each."""

    kind: str
    axis: Span
    count: int


@dataclass(frozen=True)
class GridRecord:
    """A tensor cut into the parts that ranks hold; ``remark`` says what no cell can show."""

    layout: LayoutRecord
    dims: tuple[tuple[SegmentRecord, ...], ...]
    cells: tuple[CellRecord, ...]
    pending: tuple[PendingRecord, ...]
    remark: str
    alt: str


@dataclass(frozen=True)
class ChangeRecord:
    """A layout, how it changes, and what comes of it, as one rank sees it."""

    before: GridRecord
    after: GridRecord
    actions: tuple[str, ...]
    alt: str
