"""Tables of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["align", "elide", "shorten"]


def align(rows: Sequence[Sequence[str]], right: frozenset[int] = frozenset(), indent: str = "  ") -> list[str]:
    """Lines of text with aligned columns; those in ``right`` are aligned to the right.

    Examples
    --------
    >>> align([("line", "bytes"), ("a.py:1", "8")], right=frozenset({1}))
    ['  line    bytes', '  a.py:1      8']
    """
    if not rows:
        return []
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [(indent + "  ".join(_padded(row, widths, right))).rstrip() for row in rows]


def _padded(row: Sequence[str], widths: Sequence[int], right: frozenset[int]) -> list[str]:
    return [
        cell.rjust(width) if column in right else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def elide(lines: Sequence[str], limit: int | None, note: str) -> list[str]:
    """The lines, without the middle ones where there are more than ``limit``; ``note`` says how many, as ``{}``.

    Examples
    --------
    >>> elide(["1", "2", "3", "4", "5"], 2, "... {} more")
    ['1', '... 3 more', '5']
    """
    if limit is None or len(lines) <= limit:
        return list(lines)
    head = (limit + 1) // 2
    tail = limit - head
    return [*lines[:head], note.format(f"{len(lines) - limit:,}"), *(lines[len(lines) - tail :])]


def shorten(text: str, width: int) -> str:
    """The text, cut at its end where it is wider.

    Examples
    --------
    >>> shorten("return x + self.down(h)", 12)
    'return x +…'
    """
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"
