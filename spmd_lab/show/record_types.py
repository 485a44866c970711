"""The plain records that are drawn: text, whole numbers and tuples, and nothing that computes.

A record says everything that its text, its HTML and its picture say, so that these cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "ArgumentRecord",
    "AxisRecord",
    "CodeLine",
    "CodeRecord",
    "CollectiveRecord",
    "CollectivesRecord",
    "CountsRecord",
    "DivergenceRecord",
    "EdgeRecord",
    "ExpansionRecord",
    "GraphRecord",
    "GroupRecord",
    "GroupsRecord",
    "LayoutRecord",
    "LineRecord",
    "MarkRecord",
    "ModuleRecord",
    "MoveRecord",
    "NodeRecord",
    "OperandRecord",
    "OutputErrorRecord",
    "ProgramRecord",
    "Record",
    "ReportRecord",
    "ResolvesRecord",
    "Span",
    "StepRecord",
    "TallyRecord",
    "TraceRecord",
]


@dataclass(frozen=True)
class AxisRecord:
    """A mesh axis; its position among the axes is its colour."""

    name: str
    size: int


@dataclass(frozen=True)
class Span:
    """A piece of text; ``axis`` is the position of the mesh axis that it names, -1 for none."""

    text: str
    axis: int = -1
    pending: bool = False


@dataclass(frozen=True)
class LayoutRecord:
    """A layout in the notation, cut where axes are named; ``local`` says what ranks hold."""

    spans: tuple[Span, ...]
    local: str

    @property
    def text(self) -> str:
        """The notation."""
        return "".join(span.text for span in self.spans)


@dataclass(frozen=True)
class LineRecord:
    """A line of the user's code, and the module that ran it."""

    place: str
    code: str
    module: str

    @property
    def text(self) -> str:
        """``gpt.py:17: code``."""
        return f"{self.place}: {self.code}"


@dataclass(frozen=True)
class CodeLine:
    """One statement; ``axis`` is that of a collective, else -1; ``line`` is the user's."""

    statement: str
    comment: str
    line: LineRecord | None
    phase: str
    axis: int = -1


@dataclass(frozen=True)
class ArgumentRecord:
    """An argument or a result of printed code; ``name`` stands in the code, ``title`` is the user's name."""

    name: str
    title: str
    role: str
    comment: str


@dataclass(frozen=True)
class CodeRecord:
    """A graph as Python."""

    function: str
    namespaces: tuple[str, ...]
    arguments: tuple[ArgumentRecord, ...]
    lines: tuple[CodeLine, ...]
    results: tuple[ArgumentRecord, ...]


@dataclass(frozen=True)
class MoveRecord:
    """One move of a redistribution; ``payload_bytes`` is 0 where ranks do not communicate."""

    kind: str
    axis: Span
    payload_bytes: int
    communicates: bool


@dataclass(frozen=True)
class OperandRecord:
    """One operand of a step."""

    name: str
    have: LayoutRecord
    need: LayoutRecord
    moves: tuple[MoveRecord, ...]


@dataclass(frozen=True)
class CollectiveRecord:
    """One collective."""

    kind: str
    axes: tuple[Span, ...]
    reduce_op: str
    payload_bytes: int
    sent_bytes: int
    phase: str
    step: str
    operand: str
    line: LineRecord | None
    have: LayoutRecord
    need: LayoutRecord


@dataclass(frozen=True)
class CollectivesRecord:
    """A table of collectives; ``left_out`` of them are counted but not listed."""

    count: int
    payload_bytes: int
    sent_bytes: int
    rows: tuple[CollectiveRecord, ...]
    left_out: int


@dataclass(frozen=True)
class GroupRecord:
    """Collectives that have something in common; ``place`` is ``gpt.py:17`` where that is a line."""

    title: str
    place: str
    tallies: tuple[TallyRecord, ...]
    count: int
    payload_bytes: int
    sent_bytes: int


@dataclass(frozen=True)
class GroupsRecord:
    """Groups of collectives by one property, the largest first; ``left_out`` of them are not listed."""

    by: str
    groups: tuple[GroupRecord, ...]
    left_out: int


@dataclass(frozen=True)
class TallyRecord:
    """How many collectives of one kind over one axis, in one phase ("" for both)."""

    count: int
    kind: str
    axes: tuple[Span, ...]
    phase: str
    sent_bytes: int


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
    graph: CodeRecord | None = None
    picture: GraphRecord | None = None


@dataclass(frozen=True)
class ModuleRecord:
    """A module and what it contains: the first of ``paths``; the others run the same program.

    ``steps`` are those that communicate or fall back, ``quiet_steps`` counts the others, children excluded;
    ``tallies`` include the children's.
    """

    paths: tuple[str, ...]
    layout: LayoutRecord | None
    tallies: tuple[TallyRecord, ...]
    steps: tuple[StepRecord, ...]
    quiet_steps: int
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
    resolves: int
    resolves_are_gradients: bool
    forward_collectives: int
    backward_collectives: int
    resolve_collectives: int
    sent_bytes: int
    fallbacks: int


@dataclass(frozen=True)
class ExpansionRecord:
    """An expansion; ``phases`` are its steps in runs of one phase ("forward", "backward", "resolve")."""

    name: str
    axes: tuple[AxisRecord, ...]
    counts: CountsRecord
    lines: GroupsRecord
    phases: tuple[tuple[str, int], ...]
    marks: tuple[MarkRecord, ...]
    modules: tuple[ModuleRecord, ...]
    resolves: tuple[ResolvesRecord, ...]


@dataclass(frozen=True)
class MarkRecord:
    """A collective on the strip of an expansion: at which of its steps, over which axis, how large."""

    step: int
    phase: str
    kind: str
    axis: Span
    payload_bytes: int


@dataclass(frozen=True)
class TraceRecord:
    """A traced graph."""

    name: str
    forward_operators: int
    backward_operators: int
    arguments_by_role: tuple[tuple[str, int], ...]
    results_by_role: tuple[tuple[str, int], ...]
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


@dataclass(frozen=True)
class NodeRecord:
    """A node of a picture: ``shape`` says what it is, ``axis`` colours it (-1: grey), ``lines`` label it."""

    key: str
    shape: str
    lines: tuple[str, ...]
    axis: int = -1


@dataclass(frozen=True)
class EdgeRecord:
    """An edge of a picture; one that is ``far`` is drawn lightly across it, and does not decide where nodes stand."""

    tail: str
    head: str
    far: bool = False


@dataclass(frozen=True)
class GraphRecord:
    """A picture of a graph; ``alt`` says it in words; it runs from left to right, or downward."""

    alt: str
    downward: bool
    nodes: tuple[NodeRecord, ...]
    edges: tuple[EdgeRecord, ...]


Record = TraceRecord | StepRecord | ExpansionRecord | CollectivesRecord | GroupsRecord | ProgramRecord | ReportRecord
"""What stands for a whole value."""
