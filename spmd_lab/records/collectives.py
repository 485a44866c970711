"""Collectives, their tables and their tallies as records."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from spmd_lab.records.layouts import axes_spans, layout_record, line_record
from spmd_lab.show.part_records import CollectiveRecord, GroupRecord, TallyRecord
from spmd_lab.show.value_records import CollectivesRecord, GroupsRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spmd_lab.expand.values import Collective
    from spmd_lab.explain.collectives import CollectiveGroup, CollectiveGroups, CollectiveTable

__all__ = ["collective_record", "collectives_record", "groups_record", "tally_records"]

_ROWS = 20


def collective_record(collective: Collective) -> CollectiveRecord:
    """One collective."""
    return CollectiveRecord(
        kind=collective.kind,
        axes=axes_spans(collective.have.mesh, collective.axes),
        reduce_op=collective.reduce_op or "",
        payload_bytes=collective.payload_bytes,
        sent_bytes=collective.sent_bytes_per_rank,
        phase=collective.phase,
        step=collective.step,
        operand=collective.operand,
        line=line_record(collective.source),
        have=layout_record(collective.have),
        need=layout_record(collective.need),
    )


def collectives_record(table: CollectiveTable, rows: int | None = _ROWS) -> CollectivesRecord:
    """A table, with its first rows."""
    listed = table if rows is None else table[:rows]
    return CollectivesRecord(
        count=len(table),
        payload_bytes=table.total("payload_bytes"),
        sent_bytes=table.total("sent_bytes_per_rank"),
        rows=tuple(collective_record(collective) for collective in listed),
        left_out=len(table) - len(listed),
    )


def groups_record(groups: CollectiveGroups, rows: int | None = _ROWS) -> GroupsRecord:
    """Groups, the first of them listed."""
    listed = list(groups.values())[:rows]
    records = tuple(_group_record(group, groups.by) for group in listed)
    by = "line" if groups.by == "source" else groups.by
    return GroupsRecord(by, records, left_out=len(groups) - len(listed))


def _group_record(group: CollectiveGroup, by: str) -> GroupRecord:
    source = group.collectives[0].source
    is_line = by == "source" and source is not None
    title = f"{group.key}: {source.code}" if is_line and source else group.key or "(none)"
    return GroupRecord(
        title=title,
        place=group.key if is_line else "",
        tallies=tally_records(group.collectives, by_phase=False),
        count=group.count,
        payload_bytes=group.payload_bytes,
        sent_bytes=group.sent_bytes_per_rank,
    )


def tally_records(collectives: Iterable[Collective], by_phase: bool = True) -> tuple[TallyRecord, ...]:
    """How many there are of each kind over each axis, in order of appearance."""
    counts: Counter[tuple[str, tuple[str, ...], str]] = Counter()
    sent: Counter[tuple[str, tuple[str, ...], str]] = Counter()
    mesh = None
    for found in collectives:
        key = (found.kind, found.axes, found.phase if by_phase else "")
        counts[key] += 1
        sent[key] += found.sent_bytes_per_rank
        mesh = found.have.mesh
    if mesh is None:
        return ()
    return tuple(
        TallyRecord(count, kind, axes_spans(mesh, axes), phase, sent[kind, axes, phase])
        for (kind, axes, phase), count in counts.items()
    )
