"""A graph as Python that could be run: the user's line above each group of statements, layouts as comments."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from spmd_lab.show.columns import elide

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spmd_lab.show.part_records import ArgumentRecord, CodeLine, CodeRecord

__all__ = ["Comment", "code_parts", "code_text", "statements_text"]

_COMMENT_COLUMN = 64


def code_text(record: CodeRecord, limit: int | None = None) -> str:
    """The whole function.

    Parameters
    ----------
    record : CodeRecord
        The graph.
    limit : int or None
        How many statements to print, and a quarter as many arguments and results; the middle is left out, and counted.
    """
    few = None if limit is None else max(limit // 4, 2)
    imports = ["import torch", "from torch import device, inf, nan", ""]
    names = [f"{name} = torch.ops.{name}" for name in record.namespaces]
    head = _bracketed(f"def {record.function}(", record.arguments, "):", "", few)
    tail = _bracketed("return (", record.results, ")", "    ", few)
    body = statements_text(record.lines, limit)
    return "\n".join([*imports, *names, "", *head, *body, *(f"    {line}" for line in tail)])


def _bracketed(
    opening: str, entries: Sequence[ArgumentRecord], closing: str, indent: str, limit: int | None
) -> list[str]:
    """One entry a line, with what it is as a comment."""
    if not entries:
        return [opening + closing]
    width = min(max(len(entry.name) for entry in entries), _COMMENT_COLUMN) + 1
    lines = [f"    {entry.name + ',':<{width}}  # {_described(entry)}" for entry in entries]
    return [opening, *elide(lines, limit, "    # ... {} more ..."), closing]


def _described(entry: ArgumentRecord) -> str:
    named = f"{entry.role} {entry.title}".strip()
    return f"{named}: {entry.comment}" if entry.comment else named


class Comment(NamedTuple):
    """A comment between statements; ``parts`` is set where it begins a phase."""

    text: str
    parts: bool = False


def code_parts(lines: Sequence[CodeLine], limit: int | None = None) -> Iterator[Comment | list[CodeLine]]:
    """Statements that belong together, with the comments above them; the middle of many is left out, and counted."""
    if limit is None or len(lines) <= limit:
        yield from _parts(lines, "")
        return
    head = (limit + 1) // 2
    yield from _parts(lines[:head], "")
    yield Comment(f"# ... {len(lines) - limit:,} more statements ...")
    yield from _parts(lines[len(lines) - (limit - head) :], lines[head - 1].phase)


def _parts(lines: Sequence[CodeLine], phase: str) -> Iterator[Comment | list[CodeLine]]:
    """By phase, then by the line of the user's code, then by what they do together."""
    for (current, line), group in groupby(lines, key=lambda each: (each.phase, each.line)):
        if current and current != phase:
            yield Comment(f"# ---- {current} ----", parts=True)
        phase = current
        if line is not None:
            yield Comment(f"# {line.text}  ({line.module})" if line.module else f"# {line.text}")
        for does, statements in groupby(group, key=lambda each: each.does):
            yield from (Comment(f"#   {told}") for told in does)
            yield list(statements)


def statements_text(lines: Sequence[CodeLine], limit: int | None = None) -> list[str]:
    """The statements, indented, in groups of one line of the user's code."""
    parts = code_parts(lines, limit)
    return [
        text for part in parts for text in ([f"    {part.text}"] if isinstance(part, Comment) else _commented(part))
    ]


def _commented(group: Sequence[CodeLine]) -> list[str]:
    width = max((len(line.statement) for line in group if len(line.statement) <= _COMMENT_COLUMN), default=0)
    return [
        f"    {line.statement:<{width}}  # {line.comment}" if line.comment else f"    {line.statement}"
        for line in group
    ]
