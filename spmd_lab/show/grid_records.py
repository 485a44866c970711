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

    In the picture of a change, ``own`` marks what the rank in question holds, ``arrives`` what it did not hold before.
    """

    segments: tuple[int, ...]
    places: tuple[PlaceRecord, ...]
    ranks: tuple[int, ...]
    own: bool = False
    arrives: bool = False

    @property
    def holders(self) -> str:
        """The ranks, or where they stand."""
        if self.ranks:
            return " ".join(map(str, self.ranks))
        return " ".join(f"{place.axis.text}={place.index}" for place in self.places) or "all ranks"


@dataclass(frozen=True)
class PendingRecord:
    """A reduction that has not been carried out: the ranks of ``axis`` hold one of ``count`` pieces each."""

    kind: str
    axis: Span
    count: int

    @property
    def text(self) -> str:
        """What that means."""
        whole = _WHOLE.get(self.kind, f"the {self.kind} of")
        return f"pending {self.kind} over {self.axis.text}: the tensor is {whole} {self.count} such pieces"


_WHOLE = {"sum": "the sum of", "avg": "the average of", "max": "the largest of", "min": "the smallest of"}


@dataclass(frozen=True)
class GridRecord:
    """A tensor cut into the parts that ranks hold; ``remarks`` say what no cell can show."""

    layout: LayoutRecord
    dims: tuple[tuple[SegmentRecord, ...], ...]
    cells: tuple[CellRecord, ...]
    pending: tuple[PendingRecord, ...]
    remarks: tuple[str, ...]
    alt: str


@dataclass(frozen=True)
class ChangeRecord:
    """A layout, how it changes, and what comes of it, as one rank sees it."""

    before: GridRecord
    after: GridRecord
    actions: tuple[str, ...]
    alt: str
