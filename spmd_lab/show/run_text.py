"""What each rank did in a run, as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spmd_lab.show.columns import align
from spmd_lab.show.units import bytes_text, count_text, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RankRecord", "RunRecord", "run_text", "time_text"]


@dataclass(frozen=True)
class RankRecord:
    """One rank: where it is, and what it did."""

    rank: int
    place: str
    where: str
    nodes: int
    collectives: int
    moved_bytes: int
    time_us: float
    collective_us: float


@dataclass(frozen=True)
class RunRecord:
    """A run of a saved program."""

    name: str
    digest: str
    mesh: str
    torch: str
    launcher: str
    ranks: Sequence[RankRecord]
    out: str
    outputs: Sequence[str]


def time_text(time_us: float) -> str:
    """A time with three digits.

    Examples
    --------
    >>> time_text(0.5), time_text(12.34), time_text(4567.0), time_text(2_340_000.0)
    ('0.5 us', '12.3 us', '4.57 ms', '2.34 s')
    """
    for unit in ("us", "ms"):
        if time_us < 1000:
            return f"{time_us:.3g} {unit}"
        time_us /= 1000
    return f"{time_us:.3g} s"


def run_text(record: RunRecord) -> str:
    """A sentence, a line for each rank, and what was written."""
    told = f"{counted(len(record.ranks), 'rank')} on {record.mesh}, {record.launcher}, torch {record.torch}"
    rows = [("rank", "place", "on", "nodes", "collectives", "moved", "time", "in collectives")]
    rows += [
        (
            str(each.rank),
            each.place,
            each.where,
            count_text(each.nodes),
            count_text(each.collectives),
            bytes_text(each.moved_bytes),
            time_text(each.time_us),
            time_text(each.collective_us),
        )
        for each in record.ranks
    ]
    lines = [f"{record.name} ({record.digest}): {told}", *align(rows, right=frozenset({0, 3, 4, 5, 6, 7}))]
    if record.out:
        lines += [f"written to {record.out}:", *(f"  {output}" for output in record.outputs)]
    return "\n".join(lines)
