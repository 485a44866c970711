"""Pieces of HTML that several pages share: layouts, lines, collectives, tables of them, and code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.show.code_text import Comment, code_parts
from spmd_lab.show.markup import Html, bold, code, details, escaped, joined, muted, pre, table, tag
from spmd_lab.show.sentences import tally_text
from spmd_lab.show.theme import CODE, NOWRAP, PENDING, SYMBOLS, axis_colour, ink
from spmd_lab.show.units import bytes_text, count_text, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spmd_lab.show.part_records import (
        ArgumentRecord,
        AxisRecord,
        CodeLine,
        CodeRecord,
        CollectiveRecord,
        GroupRecord,
        LayoutRecord,
        LineRecord,
        MoveRecord,
        Span,
        TallyRecord,
    )

__all__ = [
    "arguments_html",
    "bar",
    "code_html",
    "collective_rows",
    "collectives_html",
    "group_rows",
    "layout_html",
    "line_html",
    "mesh_html",
    "moves_html",
    "tallies_html",
]


def _span_html(span: Span) -> Html:
    return escaped(span.text) if span.axis < 0 else bold(span.text, ink(axis_colour(span.axis)))


def mesh_html(axes: Sequence[AxisRecord]) -> Html:
    """``dp=2 x tp=4``, each axis in its colour."""
    named = (
        joined([bold(axis.name, ink(axis_colour(position))), escaped(f"={axis.size}")])
        for position, axis in enumerate(axes)
    )
    return joined(named, " x ")


def layout_html(layout: LayoutRecord | None, local: bool = False) -> Html:
    """A layout in the notation; what is pending has a dashed frame."""
    if layout is None:
        return muted("None")
    settled = joined(_span_html(span) for span in layout.spans if not span.pending)
    pending = joined(_span_html(span) for span in layout.spans if span.pending)
    framed = tag("span", pending, style=PENDING) if pending else Html("")
    sizes = muted(f" ▸ {layout.local}") if local else Html("")
    return tag("span", settled, framed, sizes, style=f"{CODE};{NOWRAP}")


def line_html(line: LineRecord | None) -> Html:
    """A line of the user's code."""
    if line is None:
        return Html("")
    module = muted(f"  ({line.module})") if line.module else Html("")
    return joined([code(muted(f"{line.place}: "), escaped(line.code)), module])


def _symbol(kind: str, axes: Sequence[Span]) -> Html:
    colour = axis_colour(axes[0].axis if axes else -1)
    return tag("span", escaped(SYMBOLS.get(kind, "○")), style=f"color:{colour}")


def _called(kind: str, axes: Sequence[Span]) -> Html:
    """``● all_reduce(tp)``: the symbol is the kind, the colour is the axis."""
    named = joined((_span_html(span) for span in axes), ", ")
    return joined([_symbol(kind, axes), escaped(f" {kind}("), named, escaped(")")])


def _whole(*parts: Html) -> Html:
    """A piece of a line that is not broken."""
    return tag("span", *parts, style=NOWRAP)


def moves_html(moves: Sequence[MoveRecord]) -> Html:
    """How an operand gets to where it is needed."""
    if not moves:
        return muted("as it is")
    return joined((_move_html(move) for move in moves), ", ")


def _move_html(move: MoveRecord) -> Html:
    if move.communicates:
        return _whole(_called(move.kind, [move.axis]), escaped(f" {bytes_text(move.payload_bytes)}"))
    return _whole(escaped(f"{move.kind}("), _span_html(move.axis), escaped(") local"))


def collectives_html(collectives: Sequence[CollectiveRecord]) -> Html:
    """Collectives in one line, with their bytes."""
    return joined(
        (_whole(_called(each.kind, each.axes), escaped(f" {bytes_text(each.payload_bytes)}")) for each in collectives),
        ", ",
    )


def tallies_html(tallies: Sequence[TallyRecord]) -> Html:
    """How many collectives of each kind."""
    if not tallies:
        return muted("–")
    return joined((_tally_html(tally) for tally in tallies), ", ")


def _tally_html(tally: TallyRecord) -> Html:
    number, _, _ = tally_text(tally).partition(tally.kind)
    phase = muted(f" {tally.phase}") if tally.phase else Html("")
    return _whole(escaped(number), _called(tally.kind, tally.axes), phase)


def bar(share: float, axes: Sequence[Span]) -> Html:
    """A bar that is as long as a share of the whole, in the colour of its axis."""
    colour = axis_colour(axes[0].axis if axes else -1)
    size = f"width:{max(_BAR * share, 0.2):.1f}em;height:.7em;margin-right:6px;forced-color-adjust:none"
    return tag("span", style=f"display:inline-block;{size};background:{colour}")


_BAR = 14


def group_rows(groups: Sequence[GroupRecord], by: str, left_out: int) -> Html:
    """A table of groups of collectives."""
    rows = [
        (
            _whole(escaped(bytes_text(group.sent_bytes))),
            _whole(escaped(bytes_text(group.payload_bytes))),
            escaped(count_text(group.count)),
            tallies_html(group.tallies),
            code(escaped(group.title)),
        )
        for group in groups
    ]
    listed = table(("sent per rank", "payload", "count", "collectives", by), rows)
    return joined([listed, muted(f"... {count_text(left_out)} more") if left_out else Html("")])


def collective_rows(rows: Sequence[CollectiveRecord], left_out: int) -> Html:
    """A table of collectives."""
    cells = [
        (
            escaped(row.phase),
            _whole(_called(row.kind, row.axes)),
            _whole(escaped(bytes_text(row.payload_bytes))),
            _whole(escaped(bytes_text(row.sent_bytes))),
            code(escaped(row.step)),
            code(escaped(row.operand)),
            joined([layout_html(row.have), escaped(" -> "), layout_html(row.need)]),
            line_html(row.line),
        )
        for row in rows
    ]
    heading = ("phase", "collective", "payload", "sent", "step", "operand", "has -> becomes", "line")
    more = muted(f"... {count_text(left_out)} more") if left_out else Html("")
    return joined([table(heading, cells), more])


def arguments_html(noun: str, entries: Sequence[ArgumentRecord]) -> Html:
    """What code takes or gives, folded."""
    rows = [
        (code(escaped(entry.title)), escaped(entry.role), code(escaped(entry.comment)), code(escaped(entry.name)))
        for entry in entries
    ]
    return details(escaped(counted(len(entries), noun)), table(("name", "role", "layout", "in the code"), rows))


def code_html(record: CodeRecord, limit: int | None = None) -> Html:
    """The statements of a graph, by line of the user's code; the middle of a long one is left out, and counted."""
    return pre(*map(_code_part, code_parts(record.lines, limit)))


def _code_part(part: Comment | list[CodeLine]) -> Html:
    if not isinstance(part, Comment):
        return joined(map(_statement, part))
    return tag("b", escaped(f"{part.text}\n")) if part.parts else muted(f"{part.text}\n")


def _statement(line: CodeLine) -> Html:
    told = escaped(line.statement)
    statement = told if line.axis < 0 else tag("b", told, style=ink(axis_colour(line.axis)))
    return joined([statement, muted(f"  # {line.comment}") if line.comment else Html(""), Html("\n")])
