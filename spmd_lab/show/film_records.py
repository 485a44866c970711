"""The plain records of a film: one frame for each step, with what every stage does with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spmd_lab.show.part_records import CodeLine, CollectiveRecord, LayoutRecord
    from spmd_lab.show.value_records import ExpansionRecord, StepRecord

__all__ = ["FilmRecord", "FrameRecord", "HoldingRecord", "LocalNodeRecord", "TracedNodeRecord"]


@dataclass(frozen=True)
class HoldingRecord:
    """What ranks hold of a value: its local shape and, where it is known, its numbers.

    One entry a rank; a single shape where all ranks have the same.
    """

    title: str
    layout: LayoutRecord
    shapes: tuple[str, ...]
    values: tuple[str, ...]

    def shape(self, rank: int) -> str:
        """The local shape on a rank."""
        return self.shapes[rank if len(self.shapes) > 1 else 0]

    def value(self, rank: int) -> str:
        """The numbers on a rank; empty where they are not known."""
        return self.values[rank] if self.values else ""


@dataclass(frozen=True)
class TracedNodeRecord:
    """A node of the trace; ``frame`` is that of its step, -1 where it has none."""

    line: CodeLine
    frame: int


@dataclass(frozen=True)
class LocalNodeRecord:
    """A node that a rank runs: what it is for, and what it reads.

    ``collective`` is set where ranks communicate; ``value`` and ``layout`` where it holds a value of the trace.
    """

    line: CodeLine
    purpose: str
    reads: tuple[str, ...]
    collective: CollectiveRecord | None
    value: str
    layout: LayoutRecord | None


@dataclass(frozen=True)
class FrameRecord:
    """One step on its way through the stages.

    ``traced`` are the nodes of the trace around it, ``at`` its own among them, or the one before which it comes if it
    has none there; ``spliced`` are its nodes in the program of rank 0, of which ``before`` stand in front of them;
    ``sent_bytes`` is what a rank has sent by then.
    """

    step: StepRecord
    phase: str
    module: str
    traced: tuple[TracedNodeRecord, ...]
    at: int
    is_traced: bool
    holdings: tuple[HoldingRecord, ...]
    local: tuple[LocalNodeRecord, ...]
    spliced: tuple[LocalNodeRecord, ...]
    before: int
    sent_bytes: int

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes over which ranks communicate in it."""
        return tuple(dict.fromkeys(span.text for each in self.step.collectives for span in each.axes))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its collectives."""
        return tuple(dict.fromkeys(each.kind for each in self.step.collectives))


@dataclass(frozen=True)
class FilmRecord:
    """An expansion, step by step; ``statements`` is how many the program of rank 0 has."""

    overview: ExpansionRecord
    frames: tuple[FrameRecord, ...]
    ranks: int
    statements: int
