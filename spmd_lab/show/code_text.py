"""A graph as Python that could be run: the user's line above each group of statements, layouts as comments."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from spmd_lab.show.columns import elide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spmd_lab.show.part_records import ArgumentRecord, CodeLine, CodeRecord

__all__ = ["code_text", "group_heading", "groups_of", "statements_text", "step_groups"]

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


def statements_text(lines: Sequence[CodeLine], limit: int | None = None) -> list[str]:
    """The statements, indented, in groups of one line of the user's code."""
    if limit is None or len(lines) <= limit:
        return _grouped(lines, "")
    head = (limit + 1) // 2
    gap = f"    # ... {len(lines) - limit:,} more statements ..."
    tail = lines[len(lines) - (limit - head) :]
    return [*_grouped(lines[:head], ""), gap, *_grouped(tail, lines[head - 1].phase)]


def groups_of(lines: Sequence[CodeLine]) -> list[tuple[CodeLine, list[CodeLine]]]:
    """Neighbouring statements that come from one line of the user's code, with the first of each group."""
    found = [list(group) for _, group in groupby(lines, key=lambda line: (line.phase, line.line))]
    return [(group[0], group) for group in found]


def group_heading(first: CodeLine) -> str:
    """``# gpt.py:17: code  (blocks.0)``: where a group of statements comes from; empty where nobody knows."""
    if first.line is None:
        return ""
    module = f"  ({first.line.module})" if first.line.module else ""
    return f"# {first.line.text}{module}"


def step_groups(group: Sequence[CodeLine]) -> list[tuple[list[str], list[CodeLine]]]:
    """The statements of a group by what they do together, with the comments that say so."""
    found = groupby(group, key=lambda line: line.does)
    return [([f"#   {told}" for told in does], list(lines)) for does, lines in found]


def _grouped(lines: Sequence[CodeLine], phase: str) -> list[str]:
    texts: list[str] = []
    for first, group in groups_of(lines):
        if first.phase != phase and first.phase:
            texts.append(f"    # ---- {first.phase} ----")
        phase = first.phase
        heading = group_heading(first)
        if heading:
            texts.append(f"    {heading}")
        for does, lines_of_step in step_groups(group):
            texts.extend(f"    {told}" for told in does)
            texts.extend(_commented(lines_of_step))
    return texts


def _commented(group: Sequence[CodeLine]) -> list[str]:
    width = max((len(line.statement) for line in group if len(line.statement) <= _COMMENT_COLUMN), default=0)
    return [
        f"    {line.statement:<{width}}  # {line.comment}" if line.comment else f"    {line.statement}"
        for line in group
    ]
