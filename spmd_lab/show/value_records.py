"""The plain record of each value that is shown, and what such records alone contain.

A record says everything that its text, its HTML and its picture say, so that these cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spmd_lab.show.graph_records import GraphRecord
    from spmd_lab.show.part_records import (
        AxisRecord,
        CodeRecord,
        CollectiveRecord,
        GroupRecord,
        LayoutRecord,
        LineRecord,
        OperandRecord,
        Span,
        TallyRecord,
    )

__all__ = [
    "BriefRecord",
    "CollectivesRecord",
    "CountsRecord",
    "DivergenceRecord",
    "ExpansionRecord",
    "GroupsRecord",
    "MarkRecord",
    "ModuleRecord",
    "OutputErrorRecord",
    "ProgramRecord",
    "Record",
    "ReportRecord",
    "ResolvesRecord",
    "StepRecord",
    "StepsRecord",
    "TraceRecord",
]


@dataclass(frozen=True)
class CollectivesRecord:
    """A table of collectives; ``left_out`` of them are counted but not listed."""

    count: int
    payload_bytes: int
    sent_bytes: int
    rows: tuple[CollectiveRecord, ...]
    left_out: int


@dataclass(frozen=True)
class GroupsRecord:
    """Groups of collectives by one property, the largest first; ``left_out`` of them are not listed."""

    by: str
    groups: tuple[GroupRecord, ...]
    left_out: int


@dataclass(frozen=True)
class StepRecord:
    """One step; ``graph`` and ``picture`` are there where they are to be shown."""

    name: str
    op: str
    line: LineRecord | None
    phase: str
    operands: tuple[OperandRecord, ...]
    outputs: tuple[LayoutRecord | None, ...]
    collectives: tuple[CollectiveRecord, ...]
    fallback: str
    draw_bytes: int = 0
    draws_locally: bool = False
    graph: CodeRecord | None = None
    picture: GraphRecord | None = None


@dataclass(frozen=True)
class GapRecord:
    """Steps that are not listed, and how many of them communicate."""

    steps: int
    communicating: int


@dataclass(frozen=True)
class StepsRecord:
    """Several steps in order, ``count`` in all; of many, some are gaps."""

    parts: tuple[StepRecord | GapRecord, ...]
    count: int


@dataclass(frozen=True)
class BriefRecord:
    """A step in one line; ``communicates`` is empty for one without communication."""

    name: str
    op: str
    phase: str
    gives: str
    communicates: str
    place: str


@dataclass(frozen=True)
class ModuleRecord:
    """A module and what it contains: the first of ``paths``; the others run the same program.

    ``steps`` are those that communicate or fall back, ``brief_steps`` more of these where a program has very many,
    ``quiet_steps`` the others, one line each, of ``quiet_count``; children excluded;
    ``tallies`` and ``sent_bytes`` are those of one module, its children's included.
    """

    paths: tuple[str, ...]
    layout: LayoutRecord | None
    tallies: tuple[TallyRecord, ...]
    sent_bytes: int
    steps: tuple[StepRecord, ...]
    brief_steps: tuple[BriefRecord, ...]
    quiet_steps: tuple[BriefRecord, ...]
    quiet_count: int
    children: tuple[ModuleRecord, ...]


@dataclass(frozen=True)
class ResolvesRecord:
    """Pending outputs that are resolved in the same way; ``step`` is the first of them."""

    outputs: tuple[str, ...]
    tallies: tuple[TallyRecord, ...]
    step: StepRecord


@dataclass(frozen=True)
class CountsRecord:
    """The numbers of an expansion."""

    operators: int
    gathers: int
    resolves: int
    resolves_are_gradients: bool
    forward_collectives: int
    backward_collectives: int
    gather_collectives: int
    resolve_collectives: int
    left_pending: int
    sent_bytes: int
    fallbacks: int


@dataclass(frozen=True)
class MarkRecord:
    """A collective on the strip of an expansion: at which of its steps, over which axis, how large."""

    step: int
    phase: str
    kind: str
    axis: Span
    payload_bytes: int


@dataclass(frozen=True)
class ExpansionRecord:
    """An expansion.

    ``totals`` are its collectives by kind and axis, those that send most first; ``phases`` its steps in runs of one
    phase ("forward", "backward", "resolve").
    """

    name: str
    axes: tuple[AxisRecord, ...]
    counts: CountsRecord
    lines: GroupsRecord
    totals: tuple[TallyRecord, ...]
    phases: tuple[tuple[str, int], ...]
    marks: tuple[MarkRecord, ...]
    modules: tuple[ModuleRecord, ...]
    resolves: tuple[ResolvesRecord, ...]
    brief_resolves: tuple[BriefRecord, ...]


@dataclass(frozen=True)
class TraceRecord:
    """A traced graph."""

    name: str
    forward_operators: int
    backward_operators: int
    arguments_by_role: tuple[tuple[str, int], ...]
    results_by_role: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]
    code: CodeRecord


@dataclass(frozen=True)
class ProgramRecord:
    """A program as one rank runs it."""

    name: str
    axes: tuple[AxisRecord, ...]
    nodes: int
    collectives: int
    code: CodeRecord


@dataclass(frozen=True)
class OutputErrorRecord:
    """How far one output is from the single-device run; errors are numbers as text."""

    name: str
    layout: LayoutRecord | None
    ok: bool
    max_abs_error: str
    max_scaled_error: str
    tolerance: str


@dataclass(frozen=True)
class DivergenceRecord:
    """A value that is wrong."""

    step: str
    line: LineRecord | None
    value: str
    layout: LayoutRecord | None
    rank: str
    index: str
    expected: str
    got: str
    reason: str


@dataclass(frozen=True)
class ReportRecord:
    """A verification; ``largest_value`` is the value with the largest error, empty where nothing differs at all."""

    axes: tuple[AxisRecord, ...]
    ok: bool
    ranks: int
    steps: int
    values: int
    seed: int
    largest_value: str
    largest_error: str
    tolerance: str
    outputs: tuple[OutputErrorRecord, ...]
    divergences: int
    divergence: DivergenceRecord | None
    draws_taken: int = 0


Record = (
    TraceRecord
    | StepRecord
    | StepsRecord
    | ExpansionRecord
    | CollectivesRecord
    | GroupsRecord
    | ProgramRecord
    | ReportRecord
)
"""What stands for a whole value."""
