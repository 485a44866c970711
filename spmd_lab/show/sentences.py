"""The sentences that text and HTML share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.show.module_tree import module_names
from spmd_lab.show.units import bytes_text, count_text, counted

if TYPE_CHECKING:
    from spmd_lab.show.part_records import AxisRecord, CollectiveRecord, MoveRecord, Span, TallyRecord
    from spmd_lab.show.value_records import (
        CollectivesRecord,
        CountsRecord,
        DivergenceRecord,
        ExpansionRecord,
        GapRecord,
        ModuleRecord,
        ProgramRecord,
        ReportRecord,
        StepRecord,
        TraceRecord,
    )

__all__ = [
    "axes_text",
    "collective_text",
    "collectives_sentence",
    "divergence_rows",
    "draws_sentence",
    "expansion_counts",
    "expansion_sentence",
    "gap_sentence",
    "mesh_text",
    "module_title",
    "move_text",
    "next_line",
    "own_collectives",
    "program_sentence",
    "report_evidence",
    "report_sentence",
    "report_verdict",
    "short_op",
    "step_sentence",
    "tally_text",
    "trace_sentence",
]


def mesh_text(axes: tuple[AxisRecord, ...]) -> str:
    """``dp=2 x tp=4``."""
    return " x ".join(f"{axis.name}={axis.size}" for axis in axes)


def axes_text(axes: tuple[Span, ...]) -> str:
    """``dp, tp``."""
    return ", ".join(span.text for span in axes)


def short_op(op: str) -> str:
    """``mm`` of ``aten.mm.default``.

    Examples
    --------
    >>> short_op("aten.mm.default"), short_op("aten.add.Tensor"), short_op("resolve")
    ('mm', 'add', 'resolve')
    """
    parts = op.split(".")
    return parts[1] if len(parts) > 2 else parts[-1]


def move_text(move: MoveRecord) -> str:
    """``all_reduce(tp) 512 KB``; a local move says so."""
    size = bytes_text(move.payload_bytes) if move.communicates else "local"
    return f"{move.kind}({move.axis.text}) {size}"


def collective_text(record: CollectiveRecord) -> str:
    """``all_reduce(tp)``."""
    return f"{record.kind}({axes_text(record.axes)})"


def tally_text(tally: TallyRecord) -> str:
    """``6 all_gather(tp) backward``; a single one has no number."""
    count = f"{count_text(tally.count)} " if tally.count > 1 else ""
    return f"{count}{tally.kind}({axes_text(tally.axes)}) {tally.phase}".rstrip()


def module_title(module: ModuleRecord, program: str, parent: str = "") -> str:
    """The name of a module within its parent; of several that run the same program, all, or the first and last."""
    return module_names(module.paths, parent, itself=f"{program} itself")


def expansion_counts(counts: CountsRecord) -> str:
    """The numbers of an expansion, as one sentence without its subject."""
    in_steps = counts.forward_collectives + counts.backward_collectives
    pending = "pending gradient" if counts.resolves_are_gradients else "pending output"
    gathering = f", {count_text(counts.gather_collectives)} to gather {counted(counts.gathers, 'parameter')}"
    resolving = f" and {count_text(counts.resolve_collectives)} to resolve {counted(counts.resolves, pending)}"
    kept = f"{counted(counts.left_pending, 'output')} left pending, " if counts.left_pending else ""
    collectives = in_steps + counts.gather_collectives + counts.resolve_collectives
    return (
        f"{counted(counts.operators, 'operator')}, "
        f"{counted(collectives, 'collective')}: {count_text(in_steps)} in steps "
        f"({count_text(counts.forward_collectives)} forward, {count_text(counts.backward_collectives)} backward)"
        f"{gathering if counts.gathers else ''}{resolving if counts.resolves else ''}, "
        f"{kept}{bytes_text(counts.sent_bytes)} sent per rank, {counted(counts.fallbacks, 'fallback')}"
    )


def expansion_sentence(record: ExpansionRecord) -> str:
    """One line of truth about an expansion."""
    return f"{record.name} on {mesh_text(record.axes)}: {expansion_counts(record.counts)}"


def gap_sentence(record: GapRecord) -> str:
    """How many steps are not listed."""
    told = f"{count_text(record.communicating)} communicate" if record.communicating else "without communication"
    return f"... {counted(record.steps, 'more step')}, {told} ..."


def next_line(record: ExpansionRecord, *, proved: bool = False) -> str:
    """What to look at next, as a line that can be typed: what sends most, and the proof where it is not there."""
    largest = [f'expansion["{group.place}"]' for group in record.lines.groups[:1] if group.place]
    proof = [] if proved and largest else ["expansion.program.verify()"]
    return f"next: {', '.join(largest + proof)}"


def step_sentence(record: StepRecord) -> str:
    """The name, operator and phase of a step."""
    return f"{record.name}: {record.op}, {record.phase}"


def draws_sentence(record: StepRecord) -> str:
    """What a random draw costs."""
    what = "each shard draws its own numbers" if record.draws_locally else "every rank draws the whole"
    return f"{what}: {bytes_text(record.draw_bytes)}"


def own_collectives(record: StepRecord) -> tuple[CollectiveRecord, ...]:
    """Those that belong to the operator itself, and not to the way of an operand."""
    return tuple(found for found in record.collectives if found.operand == record.name)


def collectives_sentence(record: CollectivesRecord) -> str:
    """How many collectives, and how much they move."""
    if not record.count:
        return "no collectives"
    return (
        f"{counted(record.count, 'collective')}, {bytes_text(record.sent_bytes)} sent per rank, "
        f"{bytes_text(record.payload_bytes)} of payload"
    )


def trace_sentence(record: TraceRecord) -> str:
    """How large a traced graph is."""
    arguments = ", ".join(counted(count, role) for role, count in record.arguments_by_role)
    results = ", ".join(counted(count, role) for role, count in record.results_by_role)
    operators = (
        f"{counted(record.forward_operators, 'operator')} forward, {count_text(record.backward_operators)} backward"
    )
    size = f"{record.name} on one device: {operators}; takes {arguments or 'nothing'}; gives {results or 'nothing'}"
    return "; ".join([size, *record.notes])


def program_sentence(record: ProgramRecord) -> str:
    """How large a program is."""
    return (
        f"{record.name} as rank 0 of {mesh_text(record.axes)} runs it: {counted(record.nodes, 'node')}, "
        f"{counted(record.collectives, 'collective')}"
    )


def report_verdict(record: ReportRecord) -> str:
    """The verdict in a few words."""
    return f"{'every node equal' if record.ok else 'NOT equal'} on {counted(record.ranks, 'rank')}"


def report_evidence(record: ReportRecord) -> str:
    """What was judged, the largest error, and what was allowed."""
    judged = f"{counted(record.values, 'value')} of {counted(record.steps, 'step')}"
    taken = ""
    if record.draws_taken:
        taken = f"; {counted(record.draws_taken, 'local draw')} taken as ranks made them, outputs against the trace"
    if not record.largest_value:
        return f"{judged}, without any difference{taken}"
    return (
        f"{judged}, largest scaled error {record.largest_error} ({record.largest_value}), "
        f"tolerance {record.tolerance}{taken}"
    )


def report_sentence(record: ReportRecord) -> str:
    """What a verification found."""
    return f"{report_verdict(record)}: {report_evidence(record)}"


def divergence_rows(found: DivergenceRecord) -> list[tuple[str, str]]:
    """What is known of a wrong value, besides its line and its layout."""
    rows = [("step", found.step), ("value", found.value), ("rank", found.rank), ("index", found.index)]
    rows += [("expected", found.expected), ("got", found.got), ("because", found.reason)]
    return [row for row in rows if row[1]]
