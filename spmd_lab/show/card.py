"""The card of an expansion as a value, with its proof where there is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spmd_lab.show.expansion_html import expansion_html
from spmd_lab.show.markup import Html, joined, tag
from spmd_lab.show.report_html import report_badge, report_html, report_outputs
from spmd_lab.show.sentences import report_verdict
from spmd_lab.show.text import expansion_text, text
from spmd_lab.show.theme import FRAME

if TYPE_CHECKING:
    from spmd_lab.show.value_records import ExpansionRecord, ReportRecord

__all__ = ["Card", "card_html"]


def card_html(record: ExpansionRecord, report: ReportRecord | None = None) -> Html:
    """The card, its proof below the line of truth."""
    return expansion_html(record, Html("") if report is None else _proof(report))


def _proof(report: ReportRecord) -> Html:
    return report_html(report) if not report.ok else joined([tag("div", report_badge(report)), report_outputs(report)])


@dataclass(frozen=True, repr=False)
class Card:
    """An expansion and its proof, to be seen together.

    Parameters
    ----------
    record : ExpansionRecord
        The expansion.
    report : ReportRecord
        The proof of its program.
    """

    record: ExpansionRecord
    report: ReportRecord

    def __repr__(self) -> str:
        return "\n".join([expansion_text(self.record, report_verdict(self.report)), "", text(self.report)])

    def _repr_html_(self) -> str:
        return tag("div", card_html(self.record, self.report), style=FRAME)
