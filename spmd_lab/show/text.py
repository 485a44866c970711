"""Every record as text."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING

from spmd_lab.show.code_text import code_text, statements_text
from spmd_lab.show.columns import align, shorten
from spmd_lab.show.sentences import (
    collective_text,
    collectives_sentence,
    divergence_rows,
    draws_sentence,
    expansion_sentence,
    gap_sentence,
    mesh_text,
    move_text,
    next_line,
    own_collectives,
    program_sentence,
    report_sentence,
    short_op,
    step_sentence,
    tally_text,
    trace_sentence,
)
from spmd_lab.show.units import bytes_text, count_text, counted
from spmd_lab.show.value_records import (
    CollectivesRecord,
    ExpansionRecord,
    GapRecord,
    GroupsRecord,
    ProgramRecord,
    ReportRecord,
    StepRecord,
    StepsRecord,
    TraceRecord,
)

if TYPE_CHECKING:
    from spmd_lab.show.part_records import CodeRecord, LayoutRecord, LineRecord, OperandRecord
    from spmd_lab.show.value_records import DivergenceRecord

__all__ = ["expansion_text", "text"]

_STATEMENTS, _OUTPUTS = 60, 8


@singledispatch
def text(record: object, *, full: bool = False) -> str:
    """A record as text.

    Parameters
    ----------
    record : a record
        What to print.
    full : bool
        Whether to print what is otherwise left out, and counted, in the middle of long code.
    """
    raise TypeError(f"no text for a {type(record).__name__}")


@text.register
def _trace(record: TraceRecord, *, full: bool = False) -> str:
    return _titled_code(trace_sentence(record), record.code, full)


@text.register
def _program(record: ProgramRecord, *, full: bool = False) -> str:
    return _titled_code(program_sentence(record), record.code, full)


def _titled_code(sentence: str, record: CodeRecord, full: bool) -> str:
    limit = None if full else _STATEMENTS
    title = f"# {sentence}"
    if limit is not None and len(record.lines) > limit:
        title += "\n# the middle is left out; to_text() gives all of it"
    return f"{title}\n{code_text(record, limit)}"


@text.register
def _step(record: StepRecord, *, full: bool = False) -> str:
    parts = [step_sentence(record)]
    if record.line is not None:
        parts.append(f"  {line_text(record.line)}")
    if record.fallback:
        parts.append(f"  fallback: {record.fallback}")
    if record.draw_bytes:
        parts.append(f"  {draws_sentence(record)}")
    if record.operands:
        heading = ("operand", "has", "needs", "how")
        parts.extend(align([heading, *(_operand_row(operand) for operand in record.operands)]))
    within = [f"{collective_text(each)} {bytes_text(each.payload_bytes)}" for each in own_collectives(record)]
    parts.extend([f"  within: {', '.join(within)}"] if within else [])
    parts.extend(f"  -> {layout_text(layout)}" for layout in record.outputs)
    if record.graph is not None:
        arguments = ", ".join(argument.name for argument in record.graph.arguments)
        results = ", ".join(result.name for result in record.graph.results)
        parts.append(f"  as rank 0 runs it ({arguments})")
        parts.extend(f"  {line}" for line in statements_text(record.graph.lines, None if full else _STATEMENTS))
        parts.append(f"      return ({results})")
    return "\n".join(parts)


@text.register
def _steps(record: StepsRecord, *, full: bool = False) -> str:
    """One line for each."""
    if full:
        return "\n\n".join(
            f"  {gap_sentence(each)}" if isinstance(each, GapRecord) else text(each, full=True) for each in record.parts
        )
    heading = ("step", "op", "phase", "gives", "communicates", "line")
    listed = [part for part in record.parts if isinstance(part, StepRecord)]
    first, *rest = align([heading, *map(_step_row, listed)])
    rows = iter(rest)
    lines = [f"  {gap_sentence(part)}" if isinstance(part, GapRecord) else next(rows) for part in record.parts]
    return "\n".join([counted(record.count, "step"), first, *lines])


def _step_row(step: StepRecord) -> tuple[str, ...]:
    return (
        step.name,
        short_op(step.op),
        step.phase,
        ", ".join(layout.text for layout in step.outputs if layout is not None),
        ", ".join(f"{collective_text(each)} {bytes_text(each.payload_bytes)}" for each in step.collectives) or "-",
        "" if step.line is None else step.line.place,
    )


def _operand_row(operand: OperandRecord) -> tuple[str, str, str, str]:
    how = ", ".join(move_text(move) for move in operand.moves) or "as it is"
    return operand.name, operand.have.text, layout_text(operand.need), how


def layout_text(layout: LayoutRecord | None) -> str:
    """The notation and what ranks hold."""
    return "None" if layout is None else f"{layout.text} ▸ {layout.local}"


def line_text(line: LineRecord) -> str:
    """The line and its module."""
    return f"{line.text}  ({line.module})" if line.module else line.text


@text.register
def _collectives(record: CollectivesRecord, *, full: bool = False) -> str:
    heading = ("phase", "collective", "payload", "sent", "step", "operand", "has -> becomes", "line")
    rows = [
        (
            row.phase,
            collective_text(row),
            bytes_text(row.payload_bytes),
            bytes_text(row.sent_bytes),
            row.step,
            row.operand,
            f"{row.have.text} -> {row.need.text}",
            row.line.text if row.line else "",
        )
        for row in record.rows
    ]
    table = align([heading, *rows], right=frozenset({2, 3})) if rows else []
    more = [f"  ... {count_text(record.left_out)} more"] if record.left_out else []
    return "\n".join([collectives_sentence(record), *table, *more])


@text.register
def _groups(record: GroupsRecord, *, full: bool = False) -> str:
    return "\n".join(_group_lines(record)) or f"no collectives by {record.by}"


def _group_lines(record: GroupsRecord) -> list[str]:
    heading = ("sent per rank", "payload", "count", "collectives", record.by)
    rows = [
        (
            bytes_text(group.sent_bytes),
            bytes_text(group.payload_bytes),
            count_text(group.count),
            ", ".join(tally_text(tally) for tally in group.tallies),
            shorten(group.title, 100),
        )
        for group in record.groups
    ]
    more = [f"  ... {count_text(record.left_out)} more"] if record.left_out else []
    return [*align([heading, *rows], right=frozenset({0, 1, 2})), *more] if rows else []


@text.register
def _expansion(record: ExpansionRecord, *, full: bool = False) -> str:
    return expansion_text(record)


def expansion_text(record: ExpansionRecord, verdict: str = "") -> str:
    """An expansion by the lines that send most; with the verdict of its proof, where there is one."""
    truth = ", ".join(filter(None, (expansion_sentence(record), verdict)))
    totals = [f"{tally_text(each)} {bytes_text(each.sent_bytes)}" for each in record.totals]
    sent = [f"  sent per rank by axis and kind: {', '.join(totals)}"] if totals else []
    further = next_line(record, proved=bool(verdict))
    return "\n".join([truth, *sent, *_group_lines(record.lines), further])


@text.register
def _report(record: ReportRecord, *, full: bool = False) -> str:
    heading = ("output", "layout", "absolute error", "scaled", "allowed", "")
    listed = (
        record.outputs if full else [each for at, each in enumerate(record.outputs) if at < _OUTPUTS or not each.ok]
    )
    rows = [
        (
            output.name,
            output.layout.text if output.layout else "",
            output.max_abs_error,
            output.max_scaled_error,
            output.tolerance,
            "equal" if output.ok else "WRONG",
        )
        for output in listed
    ]
    table = align([heading, *rows], right=frozenset({2, 3, 4})) if rows else []
    left_out = len(record.outputs) - len(listed)
    more = [f"  ... {count_text(left_out)} more, all equal, with smaller errors"] if left_out else []
    first = _divergence_lines(record, record.divergence) if record.divergence else []
    return "\n".join(
        [report_sentence(record), f"  {mesh_text(record.axes)}, seed {record.seed}", *first, *table, *more]
    )


def _divergence_lines(record: ReportRecord, found: DivergenceRecord) -> list[str]:
    rows = divergence_rows(found)
    rows += [("layout", found.layout.text)] if found.layout else []
    rows += [("line", line_text(found.line))] if found.line else []
    return [f"  the first of {counted(record.divergences, 'divergence')}", *align(rows, indent="    ")]
