"""Measured times as text, HTML, and a timeline of each rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spmd_lab.show.columns import align, shorten
from spmd_lab.show.markup import Html, bold, code, escaped, image, joined, muted, table, tag
from spmd_lab.show.picture import Picture
from spmd_lab.show.run_text import time_text
from spmd_lab.show.svg import document, element, text_element
from spmd_lab.show.theme import BACKWARD, BAD, FORWARD, FRAME, GREY, axis_colour
from spmd_lab.show.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BarRecord", "NodeRecord", "ProfileRecord", "RankTimeRecord", "profile_html", "profile_text", "timeline"]

_LONGEST = 12
_LEFT, _WIDTH, _ROW, _TOP = 60.0, 840.0, 30.0, 24.0


@dataclass(frozen=True)
class RankTimeRecord:
    """The times of one rank, in microseconds."""

    rank: int
    run: float
    compute: float
    issue: float
    wait: float
    waited: float
    kept_waiting: float


@dataclass(frozen=True)
class NodeRecord:
    """A node that ranks have in common: its time on each, and how much of that is waiting for others."""

    node: str
    step: str
    what: str
    times: Sequence[float | None]
    waited: Sequence[float | None]
    line: str

    @property
    def longest(self) -> float:
        """The longest of all ranks."""
        return max(time for time in self.times if time is not None)


@dataclass(frozen=True)
class BarRecord:
    """A node on a timeline; ``axis`` is that of its collective, -1 where it computes."""

    rank: int
    start: float
    time: float
    waited: float
    axis: int
    backward: bool


@dataclass(frozen=True)
class ProfileRecord:
    """A profile."""

    name: str
    mesh: str
    found: str
    repeats: int
    ranks: Sequence[RankTimeRecord]
    nodes: Sequence[NodeRecord]
    bars: Sequence[BarRecord]
    straggler: str


_RANK_HEADING = ("rank", "a run", "computing", "issuing", "in waits", "waiting for others", "others waited for it")


def _sentence(record: ProfileRecord) -> str:
    runs = counted(record.repeats, "run")
    return (
        f"{record.name} on {record.mesh}: the median of {runs} on {counted(len(record.ranks), 'rank')}, {record.found}"
    )


def _rank_cells(record: ProfileRecord) -> list[tuple[str, ...]]:
    return [
        (
            str(each.rank),
            *map(time_text, (each.run, each.compute, each.issue, each.wait, each.waited, each.kept_waiting)),
        )
        for each in record.ranks
    ]


def _longest(record: ProfileRecord) -> list[NodeRecord]:
    return sorted(record.nodes, key=lambda each: -each.longest)[:_LONGEST]


def _node_cells(each: NodeRecord) -> list[str]:
    return [
        "" if time is None else time_text(time) + (f" ({time_text(waited)} waiting)" if waited else "")
        for time, waited in zip(each.times, each.waited, strict=True)
    ]


def profile_text(record: ProfileRecord) -> str:
    """A line for each rank, who keeps the others waiting, and the nodes that take longest."""
    lines = [_sentence(record), *align([_RANK_HEADING, *_rank_cells(record)], right=frozenset(range(7)))]
    lines.append(record.straggler)
    named = [f"rank {each.rank}" for each in record.ranks]
    rows = [("node", "step", "what", *named, "line")]
    rows += [(each.node, each.step, each.what, *_node_cells(each), shorten(each.line, 60)) for each in _longest(record)]
    lines.append(f"the longest of {counted(len(record.nodes), 'node')}:")
    return "\n".join([*lines, *align(rows, right=frozenset(range(3, 3 + len(named))))])


def profile_html(record: ProfileRecord) -> str:
    """The same with the timeline."""
    picture = timeline(record)
    named = [f"rank {each.rank}" for each in record.ranks]
    ranks = table(_RANK_HEADING, [[escaped(cell) for cell in row] for row in _rank_cells(record)])
    rows = [
        [
            code(escaped(each.node)),
            code(escaped(each.step)),
            escaped(each.what),
            *map(escaped, _node_cells(each)),
            code(escaped(each.line)),
        ]
        for each in _longest(record)
    ]
    longest = table(("node", "step", "what", *named, "line"), rows)
    title = muted(f"the longest of {counted(len(record.nodes), 'node')}")
    body: list[Html] = [
        tag("div", bold(_sentence(record))),
        tag("div", escaped(record.straggler)),
        image(picture.svg, picture.alt),
        ranks,
        tag("div", title),
        longest,
    ]
    return tag("div", joined(body), style=FRAME)


def timeline(record: ProfileRecord) -> Picture:
    """Each rank's nodes along the clock: computing in grey, collectives in the colour of their axis, waits in red."""
    end = max((bar.start + bar.time for bar in record.bars), default=1.0) or 1.0
    scale = _WIDTH / end
    parts = [
        part
        for tick in range(5)
        for part in (
            text_element(
                time_text(end * tick / 4), _LEFT + _WIDTH * tick / 4, 12, fill=GREY, font_size=9, text_anchor="middle"
            ),
            element(
                "path",
                d=f"M{_LEFT + _WIDTH * tick / 4:g},16 v{_TOP - 16 + _ROW * len(record.ranks):g}",
                stroke=GREY,
                stroke_opacity="0.3",
            ),
        )
    ]
    for row, each in enumerate(record.ranks):
        baseline = _TOP + _ROW * row + 16
        parts.append(text_element(f"rank {each.rank}", _LEFT - 8, baseline, fill=GREY, font_size=11, text_anchor="end"))
    for bar in record.bars:
        colour = axis_colour(bar.axis) if bar.axis >= 0 else BACKWARD if bar.backward else FORWARD
        top, left = _TOP + _ROW * bar.rank + 4, _LEFT + bar.start * scale
        parts.append(_bar(left, top, bar.time * scale, colour, 1.0))
        if bar.waited:
            parts.append(_bar(left, top, bar.waited * scale, BAD, 1.0))
    alt = f"timeline of {counted(len(record.ranks), 'rank')}: {record.straggler}"
    height = _TOP + _ROW * len(record.ranks) + 8
    return Picture(document(_LEFT + _WIDTH + 24, height, alt, parts, "sans-serif"), alt)


def _bar(left: float, top: float, width: float, colour: str, opacity: float) -> str:
    return element("rect", x=left, y=top, width=max(width, 0.2), height=_ROW - 10, fill=colour, fill_opacity=opacity)
