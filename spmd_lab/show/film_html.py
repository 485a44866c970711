"""A frame of a film as HTML: the same step in the trace, with its layouts, as a subgraph, and in the program.

Every node of a frame unfolds into its card.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.show.fragments import collectives_html, layout_html, line_html, moves_html
from spmd_lab.show.markup import Html, bold, code, details, escaped, image, joined, muted, scrolled, table, tag
from spmd_lab.show.sentences import own_collectives, short_op
from spmd_lab.show.strip_svg import strip_alt, strip_left, strip_svg
from spmd_lab.show.theme import AXIS_COLOURS, CODE, FRAME, NOWRAP, SCROLL, axis_colour, ink
from spmd_lab.show.units import bytes_text, count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from spmd_lab.show.film_records import FilmRecord, FrameRecord, HoldingRecord, LocalNodeRecord, TracedNodeRecord
    from spmd_lab.show.graph_records import GraphRecord

__all__ = ["frame_html", "frame_title", "holdings_html", "step_card", "strip_html"]

_STAGE = "border-left:3px solid rgba(128,128,128,.4);padding:0 0 4px 10px;margin:6px 0"
_CARD = "border-left:1px dotted;padding-left:8px;margin:2px 0 6px"


def frame_title(film: FilmRecord, index: int) -> str:
    """Which step a frame shows, in words."""
    frame = film.frames[index]
    name, op = frame.step.name, short_op(frame.step.op)
    told = [name, *([] if name.rstrip("0123456789").rstrip("_") == op else [op]), frame.phase]
    where = [frame.module] if frame.module else []
    return f"step {index + 1} of {len(film.frames):,}: {', '.join(told + where)}"


def frame_html(
    film: FilmRecord,
    index: int,
    holdings: Callable[[FrameRecord], Html],
    card: Callable[[int], Html],
    picture: Callable[[GraphRecord], Html],
) -> str:
    """One frame.

    Parameters
    ----------
    film, index : FilmRecord, int
        Which.
    holdings : callable
        Says what the chosen rank holds.
    card : callable
        The card of another frame's step, as `step_card` makes it.
    picture : callable
        The dispatch subgraph, as `step_html.step_picture` shows it.
    """
    frame = film.frames[index]
    step = frame.step
    drawn = [] if step.picture is None else [tag("div", picture(step.picture))]
    parts = [tag("div", bold(frame_title(film, index)))]
    parts += [tag("div", line_html(step.line))] if step.line is not None else []
    parts += [tag("div", bold("fallback: "), escaped(step.fallback))] if step.fallback else []
    parts += [
        _stage("trace", "the single-device program", _traced(frame, card)),
        _stage("propagate", "the layouts it has, and those it needs", _propagated(frame), holdings(frame)),
        _stage("subgraph", "what a rank runs for it", *drawn, _nodes(frame.local)),
        _stage("splice", _splice_text(film, frame), _nodes(frame.spliced)),
        tag("div", muted(f"sent per rank so far: {bytes_text(frame.sent_bytes)}")),
    ]
    return tag("div", *parts, style=FRAME)


def _stage(name: str, what: str, *body: Html) -> Html:
    return tag("div", tag("div", bold(name), muted(f"  {what}")), *body, style=_STAGE)


def _statements(lines: Iterable[Html]) -> Html:
    """One below the other, each with what it unfolds into."""
    return scrolled("div", *lines, style=f"{SCROLL};line-height:1.35")


def _traced(frame: FrameRecord, card: Callable[[int], Html]) -> Html:
    """The statements around it; its own is marked by an arrow and bold."""
    if frame.phase == "resolve":
        return tag("div", code(escaped(f"return: {frame.step.name}")))
    before, after = frame.traced[: frame.at], frame.traced[frame.at + frame.is_traced :]
    own = frame.traced[frame.at].line.statement if frame.is_traced else frame.step.name
    here = tag("div", tag("b", escaped(f"→ {own}"), style=f"{CODE};{NOWRAP}"))
    return _statements(
        [*(_neighbour(each, card) for each in before), here, *(_neighbour(each, card) for each in after)]
    )


def _neighbour(node: TracedNodeRecord, card: Callable[[int], Html]) -> Html:
    cards = [card(node.frame)] if node.frame >= 0 else []
    return details(code(muted(node.line.statement)), *cards)


def _propagated(frame: FrameRecord) -> Html:
    rows = [
        (code(escaped(each.name)), layout_html(each.have), layout_html(each.need), moves_html(each.moves))
        for each in frame.step.operands
    ]
    parts = [table(("operand", "has", "needs", "how"), rows)] if rows else []
    within = own_collectives(frame.step)
    parts += [tag("div", escaped("within: "), collectives_html(within))] if within else []
    return joined(parts)


def step_card(film: FilmRecord, index: int) -> Html:
    """What a node of the trace unfolds into: its line, what it has, needs and gives."""
    frame = film.frames[index]
    gives = (tag("div", escaped("-> "), layout_html(each, local=True)) for each in frame.step.outputs if each)
    title = tag("div", escaped(frame_title(film, index)))
    return tag("div", title, tag("div", line_html(frame.step.line)), _propagated(frame), *gives, style=_CARD)


def _nodes(nodes: Sequence[LocalNodeRecord]) -> Html:
    """What a rank runs; where it communicates, in the colour of the axis."""
    if not nodes:
        return muted("nothing: it is there already")
    return _statements(details(_called(node), _local_card(node)) for node in nodes)


def _called(node: LocalNodeRecord) -> Html:
    statement = escaped(node.line.statement)
    if node.collective is None:
        return code(statement)
    return tag("b", statement, style=f"{CODE};{ink(axis_colour(node.line.axis))}")


def _local_card(node: LocalNodeRecord) -> Html:
    """What a node is for, what it reads, and what it holds."""
    sent = node.collective
    told = [] if sent is None else [collectives_html([sent]), escaped(f", {bytes_text(sent.sent_bytes)} sent per rank")]
    purpose = [escaped(node.purpose)]
    if sent is not None:
        purpose = [code(escaped(f"{sent.operand}: ")), layout_html(sent.have), escaped(" -> "), layout_html(sent.need)]
    reads = [escaped("reads "), code(escaped(", ".join(node.reads)))] if node.reads else []
    holds = [escaped("holds "), code(escaped(node.value)), escaped(" "), layout_html(node.layout, local=True)]
    lines = [told, purpose, reads, holds if node.layout is not None else []]
    return tag("div", *(tag("div", *line) for line in lines if line), style=_CARD)


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
    place = f"position:absolute;top:0;bottom:22px;left:{strip_left(overview, index):.2f}%;width:2px"
    mark = tag("div", style=f"{place};background:{AXIS_COLOURS[0]};forced-color-adjust:none")
    return tag("div", picture, mark, style="position:relative;display:inline-block;max-width:100%")
