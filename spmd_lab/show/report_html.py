"""A verification as HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.show.fragments import layout_html, line_html, mesh_html
from spmd_lab.show.markup import Html, bold, code, details, escaped, joined, muted, table, tag
from spmd_lab.show.sentences import divergence_rows, report_evidence, report_verdict
from spmd_lab.show.theme import BAD, GOOD, badge
from spmd_lab.show.units import counted

if TYPE_CHECKING:
    from spmd_lab.show.value_records import DivergenceRecord, ReportRecord

__all__ = ["report_badge", "report_html", "report_outputs"]


def report_badge(record: ReportRecord) -> Html:
    """The verdict, and what it rests on."""
    mark = "✓" if record.ok else "✗"
    verdict = tag("span", escaped(f"{mark} {report_verdict(record)}"), style=badge(GOOD if record.ok else BAD))
    return joined([verdict, escaped(f" {report_evidence(record)}")])


def report_html(record: ReportRecord) -> Html:
    """The verdict, the first wrong value if there is one, and every output."""
    where = joined([mesh_html(record.axes), muted(f", seed {record.seed}")])
    first = _divergence(record, record.divergence) if record.divergence else Html("")
    return joined([tag("div", report_badge(record)), tag("div", where), first, report_outputs(record)])


def report_outputs(record: ReportRecord) -> Html:
    """The errors of every output, folded where all are right."""
    rows = [
        (
            code(escaped(output.name)),
            layout_html(output.layout),
            escaped(output.max_abs_error),
            escaped(output.max_scaled_error),
            escaped(output.tolerance),
            escaped("equal" if output.ok else "WRONG"),
        )
        for output in record.outputs
    ]
    if not rows:
        return Html("")
    listed = table(("output", "layout", "absolute error", "scaled", "allowed", "verdict"), rows)
    against = f"{counted(len(rows), 'output')} against eager PyTorch"
    return details(bold(against), listed, opened=not record.ok)


def _divergence(record: ReportRecord, found: DivergenceRecord) -> Html:
    rows = [(bold(name), code(escaped(value))) for name, value in divergence_rows(found)]
    rows += [(bold("layout"), layout_html(found.layout))] if found.layout else []
    rows += [(bold("line"), line_html(found.line))] if found.line else []
    return table((f"the first of {counted(record.divergences, 'divergence')}", ""), rows)
