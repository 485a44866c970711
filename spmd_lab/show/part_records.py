"""The plain records of which others are made: text, whole numbers and tuples, and nothing that computes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "ArgumentRecord",
    "AxisRecord",
    "CodeLine",
    "CodeRecord",
    "CollectiveRecord",
    "GroupRecord",
    "LayoutRecord",
    "LineRecord",
    "MoveRecord",
    "OperandRecord",
    "Span",
    "TallyRecord",
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
    """One statement; ``axis`` is that of a collective, else -1; ``line`` is the user's.

    ``does`` says, line by line, what it and its neighbours do together, where one operator becomes several statements.
    """

    statement: str
    comment: str
    line: LineRecord | None
    phase: str
    axis: int = -1
    does: tuple[str, ...] = ()


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
class TallyRecord:
    """How many collectives of one kind over one axis, in one phase ("" for both)."""

    count: int
    kind: str
    axes: tuple[Span, ...]
    phase: str
    sent_bytes: int


@dataclass(frozen=True)
class GroupRecord:
    """Collectives that have something in common; ``place`` is ``gpt.py:17`` where that is a line."""

    title: str
    place: str
    tallies: tuple[TallyRecord, ...]
    count: int
    payload_bytes: int
    sent_bytes: int
