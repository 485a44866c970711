"""An expansion as a record."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from spmd_lab.records.collectives import groups_record, tally_records
from spmd_lab.records.layouts import axis_span, mesh_axes
from spmd_lab.records.modules import module_records
from spmd_lab.records.steps import brief_record, step_record
from spmd_lab.show.value_records import CountsRecord, ExpansionRecord, MarkRecord, ResolvesRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spmd_lab.expand.expansion import Expansion
    from spmd_lab.expand.values import Step
    from spmd_lab.show.part_records import TallyRecord

__all__ = ["expansion_record"]

_RESOLVE = "resolve:"
_LINES, _RESOLVES = 8, 6


def expansion_record(expansion: Expansion, modules: bool = True, pictures: bool = False) -> ExpansionRecord:
    """An expansion.

    Parameters
    ----------
    expansion : Expansion
        What to describe.
    modules : bool
        Whether to go into its modules and their steps, or to stay with the numbers.
    pictures : bool
        Whether steps are to carry a picture.
    """
    in_modules = [step for step in expansion.steps if not _resolves(step)]
    resolves = [step for step in expansion.steps if _resolves(step)]
    groups = _alike(resolves) if modules else []
    return ExpansionRecord(
        name=expansion.name,
        axes=mesh_axes(expansion.mesh),
        counts=_counts(expansion),
        lines=groups_record(expansion.collectives.by("source"), rows=_LINES),
        totals=_totals(expansion),
        phases=_phases(expansion.steps),
        marks=_marks(expansion.steps),
        modules=module_records(in_modules, pictures) if modules else (),
        resolves=_resolve_records(groups[:_RESOLVES], pictures),
        brief_resolves=tuple(brief_record(step) for group in groups[_RESOLVES:] for step in group),
    )


def _resolves(step: Step) -> bool:
    return step.name.startswith(_RESOLVE)


def _counts(expansion: Expansion) -> CountsRecord:
    steps = expansion.steps
    gathers = [step for step in steps if step.op == "gather"]
    resolves = [step for step in steps if _resolves(step)]
    operators = [step for step in steps if not step.only_moves]
    in_steps = [found for step in operators for found in step.collectives]
    return CountsRecord(
        operators=len(operators),
        gathers=len({step.name.partition(":")[2] for step in gathers}),
        resolves=len(resolves),
        resolves_are_gradients=all(step.name.startswith(f"{_RESOLVE}grad(") for step in resolves),
        forward_collectives=sum(found.phase == "forward" for found in in_steps),
        backward_collectives=sum(found.phase == "backward" for found in in_steps),
        gather_collectives=sum(len(step.collectives) for step in gathers),
        resolve_collectives=sum(len(step.collectives) for step in resolves),
        left_pending=sum(layout is not None and layout.is_pending for layout in expansion.output_layouts),
        sent_bytes=sum(found.sent_bytes_per_rank for step in steps for found in step.collectives),
        fallbacks=sum(step.fallback is not None for step in operators),
    )


def _totals(expansion: Expansion) -> tuple[TallyRecord, ...]:
    """Collectives by kind and axis, those that send most first."""
    return tuple(sorted(tally_records(expansion.collectives, by_phase=False), key=lambda tally: -tally.sent_bytes))


def _marks(steps: Sequence[Step]) -> tuple[MarkRecord, ...]:
    """Where on the program's way ranks communicate."""
    return tuple(
        MarkRecord(
            step=index,
            phase=_phase(step),
            kind=found.kind,
            axis=axis_span(found.have.mesh, found.axes[0]),
            payload_bytes=found.payload_bytes,
        )
        for index, step in enumerate(steps)
        for found in step.collectives
    )


def _phase(step: Step) -> str:
    return "resolve" if _resolves(step) else step.phase


def _phases(steps: Sequence[Step]) -> tuple[tuple[str, int], ...]:
    return tuple((phase, len(list(run))) for phase, run in groupby(steps, key=_phase))


def _alike(resolves: Sequence[Step]) -> list[list[Step]]:
    """Resolved outputs, those together that have equal layouts and need equal collectives."""
    groups: dict[object, list[Step]] = {}
    for step in resolves:
        key = (tuple((each.have, each.need) for each in step.operands), step.outputs)
        groups.setdefault(key, []).append(step)
    return list(groups.values())


def _resolve_records(groups: Sequence[Sequence[Step]], pictures: bool) -> tuple[ResolvesRecord, ...]:
    return tuple(
        ResolvesRecord(
            outputs=tuple(step.name.removeprefix(_RESOLVE) for step in group),
            tallies=tally_records((found for step in group for found in step.collectives), by_phase=False),
            step=step_record(group[0], graph=True, picture=pictures),
        )
        for group in groups
    )
