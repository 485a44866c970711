"""A verification as a record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.records.layouts import layout_record, line_record, mesh_axes
from spmd_lab.show.value_records import DivergenceRecord, OutputErrorRecord, ReportRecord

if TYPE_CHECKING:
    from spmd_lab.prove import Divergence, OutputError, VerifyReport

__all__ = ["report_record"]


def report_record(report: VerifyReport) -> ReportRecord:
    """A verification, its outputs with the largest errors first."""
    outputs = sorted(report.outputs, key=lambda output: (output.ok, -output.max_scaled_error))
    largest = report.largest if report.largest is not None and report.largest.scaled_error else None
    first = report.first_divergence
    return ReportRecord(
        axes=mesh_axes(report.mesh),
        ok=report.ok,
        ranks=len(report.ranks),
        steps=report.steps_checked,
        values=report.values_checked,
        seed=report.seed,
        largest_value="" if largest is None else largest.value,
        largest_error="" if largest is None else _number(largest.scaled_error),
        tolerance=_number(report.tolerance),
        outputs=tuple(_output_record(output) for output in outputs),
        divergences=len(report.divergences),
        divergence=None if first is None else _divergence_record(first),
        draws_taken=report.draws_taken,
    )


def _number(value: float) -> str:
    """Two digits: enough to judge an error by."""
    return f"{value:.1e}" if value else "0"


def _output_record(output: OutputError) -> OutputErrorRecord:
    return OutputErrorRecord(
        name=output.name,
        layout=None if output.layout is None else layout_record(output.layout),
        ok=output.ok,
        max_abs_error=_number(output.max_abs_error),
        max_scaled_error=_number(output.max_scaled_error),
        tolerance=_number(output.tolerance),
    )


def _divergence_record(found: Divergence) -> DivergenceRecord:
    return DivergenceRecord(
        step="" if found.step is None else f"{found.step.name}: {found.step.op}",
        line=None if found.step is None else line_record(found.step.source),
        value=found.value,
        layout=None if found.layout is None else layout_record(found.layout),
        rank="" if found.rank is None else str(found.rank),
        index="" if found.index is None else str(list(found.index)),
        expected=str(found.expected),
        got=str(found.got),
        reason=found.reason,
    )
