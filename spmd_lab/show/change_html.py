"""What another choice of layouts changes: collectives and bytes, before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.show.fragments import tallies_html
from spmd_lab.show.markup import Html, bold, escaped, joined, table, tag
from spmd_lab.show.units import bytes_text, count_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spmd_lab.show.part_records import TallyRecord
    from spmd_lab.show.value_records import ExpansionRecord

__all__ = ["change_html", "change_sentence"]


def change_sentence(before: ExpansionRecord, after: ExpansionRecord) -> str:
    """How many collectives and bytes there were, and are."""
    counts = [sum(total.count for total in record.totals) for record in (before, after)]
    sent = [record.counts.sent_bytes for record in (before, after)]
    if before.totals == after.totals:
        return f"the same collectives: {count_text(counts[0])}, {bytes_text(sent[0])} sent per rank"
    difference = sent[1] - sent[0]
    told = f"{bytes_text(abs(difference))} {'more' if difference > 0 else 'less'}" if difference else "as much"
    return (
        f"{count_text(counts[0])} -> {count_text(counts[1])} collectives, "
        f"{bytes_text(sent[0])} -> {bytes_text(sent[1])} sent per rank: {told}"
    )


def change_html(before: ExpansionRecord, after: ExpansionRecord) -> Html:
    """The sentence, and a row for each axis and kind that changes."""
    sentence = tag("div", bold(change_sentence(before, after)))
    first, second = _by_call(before.totals), _by_call(after.totals)
    rows = [
        (tallies_html([_alone(first.get(key) or second[key])]), *_pair(first.get(key), second.get(key)))
        for key in dict.fromkeys([*first, *second])
        if first.get(key) != second.get(key)
    ]
    return joined([sentence, table(("by axis and kind", "count", "sent per rank"), rows) if rows else Html("")])


def _by_call(totals: Sequence[TallyRecord]) -> dict[object, TallyRecord]:
    return {(total.kind, total.axes): total for total in totals}


def _alone(total: TallyRecord) -> TallyRecord:
    """The call, without its count."""
    return type(total)(1, total.kind, total.axes, "", 0)


def _pair(before: TallyRecord | None, after: TallyRecord | None) -> tuple[Html, Html]:
    counts = [0 if total is None else total.count for total in (before, after)]
    sent = [0 if total is None else total.sent_bytes for total in (before, after)]
    return escaped(" -> ".join(map(count_text, counts))), escaped(" -> ".join(map(bytes_text, sent)))
