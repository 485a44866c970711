"""An expansion as HTML: the truth in one line, the communication along the program, then modules, steps, resolves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from spmd_lab.show.fragments import bar, group_rows, layout_html, mesh_html, moves_html, tallies_html
from spmd_lab.show.markup import Html, bold, code, details, escaped, image, joined, muted, pre, table, tag
from spmd_lab.show.sentences import expansion_counts, module_title, next_line, short_op
from spmd_lab.show.step_html import step_body, step_details
from spmd_lab.show.strip_svg import strip_alt, strip_svg
from spmd_lab.show.theme import SYMBOLS, column
from spmd_lab.show.units import bytes_text, count_text, counted, share_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spmd_lab.show.value_records import BriefRecord, ExpansionRecord, ModuleRecord, ResolvesRecord

__all__ = ["expansion_html"]

_NAME_WIDTH, _LAYOUT_WIDTH, _TALLIES_WIDTH, _INDENT_WIDTH = 19.0, 20.0, 38.0, 1.2


def expansion_html(record: ExpansionRecord, proof: Html = Html("")) -> Html:  # noqa: B008
    """The whole card; ``proof`` stands below the line of truth."""
    title = joined([bold(record.name, "font-size:15px"), escaped(" on "), mesh_html(record.axes)])
    ranks = math.prod(axis.size for axis in record.axes)
    return joined(
        [
            tag("div", title, muted(f"  {counted(ranks, 'rank')}, one program")),
            tag("div", escaped(expansion_counts(record.counts))),
            proof,
            _strip(record),
            _totals(record),
            _largest_lines(record),
            _modules(record),
            _resolves(record),
            tag("div", code(muted(next_line(record, proved=bool(proof)))), style="margin-top:6px"),
        ]
    )


def _strip(record: ExpansionRecord) -> Html:
    if not record.marks:
        return Html("")
    legend = ", ".join(f"{symbol} {kind}" for kind, symbol in SYMBOLS.items())
    told = f"{legend}; height: bytes of payload; colour: the axis; 1 KB is 1,024 bytes"
    picture = tag("div", image(strip_svg(record), strip_alt(record)))
    return joined([picture, tag("div", muted(told), style="font-size:11px")])


def _largest_lines(record: ExpansionRecord) -> Html:
    if not record.lines.groups:
        return Html("")
    listed = group_rows(record.lines.groups, record.lines.by, record.lines.left_out)
    return details(bold("the lines that send most"), listed, opened=True)


def _totals(record: ExpansionRecord) -> Html:
    """What is sent, by axis and kind: a bar each."""
    whole = max(record.counts.sent_bytes, 1)
    rows = [
        (
            tallies_html([total]),
            joined([bar(total.sent_bytes / whole, total.axes), escaped(bytes_text(total.sent_bytes))]),
            escaped(share_text(total.sent_bytes / whole)),
        )
        for total in record.totals
    ]
    return table(("by axis and kind", "sent per rank", "of all"), rows) if rows else Html("")


def _modules(record: ExpansionRecord) -> Html:
    if not record.modules:
        return Html("")
    heading = joined(
        [
            tag("span", bold("module"), style=column(_NAME_WIDTH)),
            tag("span", bold("gives"), style=column(_LAYOUT_WIDTH)),
            bold("collectives in its steps, and what a rank sends in them"),
        ],
        " ",
    )
    rows = joined(_module(module, record.name, "", 1) for module in record.modules)
    return joined([tag("div", heading, style="margin:8px 0 2px 1.1em"), rows])


def _module(module: ModuleRecord, program: str, parent: str, depth: int) -> Html:
    repeated = muted(f" × {count_text(len(module.paths))}") if len(module.paths) > 1 else Html("")
    name_width = _NAME_WIDTH - _INDENT_WIDTH * (depth - 1)
    summary = joined(
        [
            tag("span", bold(module_title(module, program, parent)), repeated, style=column(name_width)),
            tag("span", layout_html(module.layout), style=column(_LAYOUT_WIDTH)),
            tag("span", tallies_html(module.tallies), _sent(module), style=column(_TALLIES_WIDTH, grows=True)),
        ],
        " ",
    )
    children = (_module(child, program, module.paths[0], depth + 1) for child in module.children)
    steps = (step_details(step) for step in module.steps)
    more = _lines(module.brief_steps, len(module.brief_steps), "more that communicate")
    quiet = _lines(module.quiet_steps, module.quiet_count, "of its own without communication")
    return details(summary, _same(module), *children, *steps, more, quiet)


def _same(module: ModuleRecord) -> Html:
    """Which modules share a row."""
    if len(module.paths) == 1:
        return Html("")
    return tag("div", muted(f"the same program in each of {', '.join(module.paths)}"))


def _sent(module: ModuleRecord) -> Html:
    each = " each" if len(module.paths) > 1 else ""
    return muted(f", {bytes_text(module.sent_bytes)}{each}") if module.sent_bytes else Html("")


def _lines(steps: Sequence[BriefRecord], total: int, which: str) -> Html:
    """Steps that have a line each; what is not listed is counted."""
    if not total:
        return Html("")
    width = max((len(step.name) for step in steps), default=0)
    lines = [
        f"{step.name:<{width}}  {short_op(step.op)}, {step.phase} -> {step.gives or 'nothing'}"
        f"{'  ' if step.communicates else ''}{step.communicates}  {step.place}"
        for step in steps
    ]
    lines += [f"... {count_text(total - len(steps))} more"] if total > len(steps) else []
    return details(muted(f"{counted(total, 'step')} {which}"), pre(escaped("\n".join(lines))))


def _resolves(record: ExpansionRecord) -> Html:
    if not record.resolves:
        return Html("")
    kind = "gradients" if record.counts.resolves_are_gradients else "outputs"
    summary = bold(f"{count_text(record.counts.resolves)} pending {kind} to resolve")
    groups = (_resolved(group) for group in record.resolves)
    more = _lines(record.brief_resolves, len(record.brief_resolves), "more, one for each output")
    return tag("div", details(summary, *groups, more), style="margin-top:6px")


def _resolved(group: ResolvesRecord) -> Html:
    operand = group.step.operands[0]
    ends = joined([layout_html(operand.have), layout_html(operand.need)], " -> ")
    names = group.outputs[0] if len(group.outputs) == 1 else f"{count_text(len(group.outputs))} outputs"
    listed = tag("div", code(escaped(", ".join(group.outputs))))
    return details(joined([bold(names), ends, moves_html(operand.moves)], "  "), listed, step_body(group.step))
