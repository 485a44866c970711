"""The communication along a program: every step from left to right, collectives as marks, their bytes as height."""

from __future__ import annotations

import math
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

from spmd_lab.show.svg import document, element, number, text_element
from spmd_lab.show.symbols import symbol_path
from spmd_lab.show.theme import BACKWARD, FORWARD, GREY, axis_colour
from spmd_lab.show.units import bytes_text, counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spmd_lab.show.value_records import ExpansionRecord, MarkRecord

__all__ = ["strip_alt", "strip_left", "strip_svg"]

_LEFT, _WIDTH, _TOP, _GROUND, _HEIGHT, _BESIDE = 52.0, 840.0, 10.0, 70.0, 92.0, 4.0
_MANY = 300
_FULL = _LEFT + _WIDTH + 16
_COLOURS = {"forward": FORWARD, "backward": BACKWARD, "resolve": GREY}


def strip_alt(record: ExpansionRecord) -> str:
    """What the strip shows, in words."""
    phases = Counter(mark.phase for mark in record.marks)
    told = ", ".join(f"{phases[phase]} {word}" for phase, word in _WORDS.items() if phases[phase])
    return f"communication along the program: {counted(len(record.marks), 'collective')}: {told}"


_WORDS = {"forward": "forward", "backward": "backward", "resolve": "to resolve outputs"}


def strip_svg(record: ExpansionRecord) -> str:
    """The strip."""
    sizes = [mark.payload_bytes for mark in record.marks]
    low, high = math.floor(_log(min(sizes))), math.ceil(_log(max(sizes)))
    scale = _Scale(low, max(high, low + 1), max(sum(count for _, count in record.phases), 1))
    placed = _thinned(list(_placed(record.marks, scale)))
    parts = [*_ticks(scale), *_stems(placed), *_symbols(placed), *_phases(record, scale)]
    return document(_FULL, _HEIGHT, strip_alt(record), parts, "sans-serif")


def strip_left(record: ExpansionRecord, step: int) -> float:
    """How far from its left edge a step stands on the strip, in percent."""
    return 100 * (_LEFT + _WIDTH * (step + 0.5) / max(sum(count for _, count in record.phases), 1)) / _FULL


class _Scale:
    """From steps and bytes to points."""

    def __init__(self, low: int, high: int, steps: int) -> None:
        self.low, self.high, self.steps = low, high, steps

    def x(self, step: float) -> float:
        return _LEFT + _WIDTH * step / self.steps

    def y(self, payload_bytes: int) -> float:
        part = (_log(payload_bytes) - self.low) / (self.high - self.low)
        return _GROUND - 10 - (_GROUND - 10 - _TOP) * part


def _log(payload_bytes: int) -> float:
    return math.log2(max(payload_bytes, 1))


def _ticks(scale: _Scale) -> list[str]:
    return [
        text_element(bytes_text(2**power), _LEFT - 8, scale.y(2**power) + 3, text_anchor="end", fill=GREY, font_size=9)
        + element("path", d=f"M{_LEFT - 5:g},{scale.y(2**power):g} h{_WIDTH + 5:g}", stroke=GREY, stroke_opacity="0.25")
        for power in (scale.low, scale.high)
    ]


def _placed(marks: tuple[MarkRecord, ...], scale: _Scale) -> Iterator[tuple[MarkRecord, float, float]]:
    """Where each mark stands; those of one step stand side by side."""
    for _, together in groupby(marks, key=lambda mark: mark.step):
        found = list(together)
        for position, mark in enumerate(found):
            shift = _BESIDE * (position - (len(found) - 1) / 2)
            yield mark, scale.x(mark.step + 0.5) + shift, scale.y(mark.payload_bytes)


def _thinned(placed: list[tuple[MarkRecord, float, float]]) -> list[tuple[MarkRecord, float, float]]:
    """Of many marks, those that can be told apart: the largest of each kind and axis within a symbol's width."""
    if len(placed) <= _MANY:
        return placed
    tallest: dict[object, tuple[MarkRecord, float, float]] = {}
    for found in placed:
        mark, x, y = found
        key = (mark.kind, mark.axis.axis, int(x // _BESIDE))
        if key not in tallest or y < tallest[key][2]:
            tallest[key] = found
    return list(tallest.values())


def _stems(placed: list[tuple[MarkRecord, float, float]]) -> list[str]:
    """One path for each axis."""
    axes = sorted({mark.axis.axis for mark, _, _ in placed})
    return [
        element(
            "path",
            d="".join(f"M{number(x)},{number(_GROUND)}V{number(y)}" for mark, x, y in placed if mark.axis.axis == axis),
            stroke=axis_colour(axis),
            stroke_opacity="0.6",
        )
        for axis in axes
    ]


def _symbols(placed: list[tuple[MarkRecord, float, float]]) -> list[str]:
    """One path for each kind and axis: a program may have hundreds."""
    groups: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for mark, x, y in placed:
        groups.setdefault((mark.kind, mark.axis.axis), []).append((x, y))
    return [
        element("path", d="".join(symbol_path(kind, x, y, 7) for x, y in points), fill=axis_colour(axis))
        for (kind, axis), points in groups.items()
    ]


def _phases(record: ExpansionRecord, scale: _Scale) -> list[str]:
    """The ground: one bar for each phase."""
    parts, start = [], 0
    for phase, count in record.phases:
        left, right = scale.x(start), scale.x(start + count)
        parts.append(element("rect", x=left, y=_GROUND, width=right - left, height=5, fill=_COLOURS[phase]))
        if right - left > 50:
            parts.append(text_element(phase, left, _GROUND + 17, fill=GREY, font_size=10))
        start += count
    return parts
