"""A run of a saved program as a record, and so as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.show.run_text import RankRecord, RunRecord
from spmd_lab.show.run_text import run_text as text_of_record

if TYPE_CHECKING:
    from spmd_lab.run.run_report import RunReport

__all__ = ["run_text"]


def run_text(report: RunReport) -> str:
    """What each rank did."""
    axes = report.mesh.axes
    ranks = [
        RankRecord(
            rank=each.rank,
            place=", ".join(f"{axis}={index}" for axis, index in zip(axes, each.coordinate, strict=True)),
            where=f"{each.machine} {each.device}",
            nodes=each.nodes,
            collectives=each.collectives,
            moved_bytes=each.moved_bytes,
            time_us=each.time_us,
            collective_us=each.collective_us,
        )
        for each in report.ranks
    ]
    return text_of_record(
        RunRecord(
            name=report.name,
            digest=report.digest,
            mesh=str(report.mesh),
            torch=report.torch_version,
            launcher=report.launcher,
            ranks=ranks,
            out="" if report.out is None else str(report.out),
            outputs=report.outputs,
        )
    )
