"""A frame of a film as HTML: the same step in the trace, with its layouts, as a subgraph, and in the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.show.fragments import collectives_html, layout_html, line_html, moves_html
from spmd_lab.show.markup import Html, bold, code, escaped, image, joined, muted, pre, table, tag
from spmd_lab.show.sentences import own_collectives, short_op
from spmd_lab.show.strip_svg import strip_alt, strip_left, strip_svg
from spmd_lab.show.theme import AXIS_COLOURS, FRAME, axis_colour
from spmd_lab.show.units import bytes_text, count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spmd_lab.show.film_records import FilmRecord, FrameRecord, HoldingRecord
    from spmd_lab.show.part_records import CodeLine

__all__ = ["frame_html", "frame_title", "holdings_html", "strip_html"]

_STAGE = "border-left:3px solid rgba(128,128,128,.4);padding:0 0 4px 10px;margin:6px 0"


def frame_title(film: FilmRecord, index: int) -> str:
    """Which step a frame shows, in words."""
    frame = film.frames[index]
    where = f", {frame.module}" if frame.module else ""
    return (
        f"step {index + 1} of {len(film.frames):,}: {frame.step.name}, {short_op(frame.step.op)}, {frame.phase}{where}"
    )


def frame_html(film: FilmRecord, index: int, holdings: Callable[[FrameRecord], Html]) -> str:
    """One frame; ``holdings`` says what the chosen rank holds."""
    frame = film.frames[index]
    step = frame.step
    parts = [tag("div", bold(frame_title(film, index)))]
    parts += [tag("div", line_html(step.line))] if step.line is not None else []
    parts += [tag("div", bold("fallback: "), escaped(step.fallback))] if step.fallback else []
    parts += [
        _stage("trace", "the single-device program", _traced(frame)),
        _stage("propagate", "the layouts it has, and those it needs", _propagated(frame), holdings(frame)),
        _stage("subgraph", "what a rank runs for it", _code(frame.local)),
        _stage("splice", _splice_text(film, frame), _code(frame.spliced)),
        tag("div", muted(f"sent per rank so far: {bytes_text(frame.sent_bytes)}")),
    ]
    return tag("div", *parts, style=FRAME)


def _stage(name: str, what: str, *body: Html) -> Html:
    return tag("div", tag("div", bold(name), muted(f"  {what}")), *body, style=_STAGE)


def _traced(frame: FrameRecord) -> Html:
    """The statements around it; its own is marked by an arrow and bold."""
    if frame.phase == "resolve":
        return tag("div", code(escaped(f"return: {frame.step.name}")))
    lines = [
        tag("b", escaped(f"▶ {line.statement}\n")) if position == frame.at else muted(f"  {line.statement}\n")
        for position, line in enumerate(frame.traced)
    ]
    return pre(*lines)


def _propagated(frame: FrameRecord) -> Html:
    rows = [
        (code(escaped(each.name)), layout_html(each.have), layout_html(each.need), moves_html(each.moves))
        for each in frame.step.operands
    ]
    parts = [table(("operand", "has", "needs", "how"), rows)] if rows else []
    within = own_collectives(frame.step)
    parts += [tag("div", escaped("within: "), collectives_html(within))] if within else []
    return joined(parts)


def holdings_html(holdings: Sequence[HoldingRecord], rank: int) -> Html:
    """What one rank holds before and after a step."""
    known = any(each.values for each in holdings)
    rows = [
        (
            code(escaped(each.title)),
            layout_html(each.layout),
            code(escaped(each.shape(rank))),
            *((code(escaped(each.value(rank))),) if known else ()),
        )
        for each in holdings
    ]
    heading = ("value", "layout", f"rank {rank} holds", *(("numbers",) if known else ()))
    return table(heading, rows) if rows else Html("")


def _code(lines: Sequence[CodeLine]) -> Html:
    if not lines:
        return muted("nothing: it is there already")
    statements = [
        tag("b", escaped(f"{line.statement}\n"), style=f"color:{axis_colour(line.axis)}")
        if line.axis >= 0
        else escaped(f"{line.statement}\n")
        for line in lines
    ]
    return pre(*statements)


def _splice_text(film: FilmRecord, frame: FrameRecord) -> str:
    if not frame.spliced:
        return f"the program of rank 0, {count_text(film.statements)} statements"
    first, last = frame.before + 1, frame.before + len(frame.spliced)
    return f"statements {first:,} to {last:,} of {film.statements:,} in the program of rank 0"


def strip_html(film: FilmRecord, index: int) -> Html:
    """The communication along the program, with a mark where the frame stands."""
    overview = film.overview
    if not overview.marks:
        return Html("")
    picture = image(strip_svg(overview), strip_alt(overview))
    left = strip_left(overview, index)
    mark = tag(
        "div", style=f"position:absolute;top:0;bottom:22px;left:{left:.2f}%;width:2px;background:{AXIS_COLOURS[0]}"
    )
    return tag("div", picture, mark, style="position:relative;display:inline-block;max-width:100%")
