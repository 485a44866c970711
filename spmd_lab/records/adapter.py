"""Which record belongs to which value."""

from __future__ import annotations

from functools import partial, singledispatch
from itertools import groupby
from typing import TYPE_CHECKING

from spmd_lab.expand.expansion import Expansion
from spmd_lab.expand.found import StepList, Steps
from spmd_lab.expand.values import Collective, Step
from spmd_lab.explain import CollectiveGroups, CollectiveTable
from spmd_lab.prove import VerifyReport
from spmd_lab.rebuild import Program
from spmd_lab.records.collectives import collectives_record, groups_record
from spmd_lab.records.expansions import expansion_record
from spmd_lab.records.programs import program_record
from spmd_lab.records.reports import report_record
from spmd_lab.records.steps import step_record
from spmd_lab.records.traces import trace_record
from spmd_lab.show.value_records import GapRecord, Record, StepRecord, StepsRecord
from spmd_lab.trace.values import TracedGraph

if TYPE_CHECKING:
    from spmd_lab.shown import Shown

__all__ = ["adapt", "adapt_briefly"]

_STEPS, _ENDS = 60, 5
"""Of more than so many steps some are left out, but never the first and last few."""


@singledispatch
def adapt(value: Shown) -> Record:
    """The record of a value."""
    raise TypeError(f"no record for a {type(value).__name__}")


adapt.register(TracedGraph)(trace_record)
adapt.register(CollectiveTable)(collectives_record)
adapt.register(CollectiveGroups)(groups_record)
adapt.register(Program)(program_record)
adapt.register(VerifyReport)(report_record)


@adapt.register
def _expansion(value: Expansion) -> Record:
    return expansion_record(value, pictures=True)


@adapt.register(Steps)
@adapt.register(StepList)
def _steps(value: Steps | StepList) -> Record:
    listed = set(sorted(range(len(value)), key=partial(_rank, value))[:_STEPS])
    parts: list[StepRecord | GapRecord] = []
    for is_listed, places in groupby(range(len(value)), key=listed.__contains__):
        steps = [value[place] for place in places]
        parts += (
            map(step_record, steps) if is_listed else [GapRecord(len(steps), sum(bool(s.collectives) for s in steps))]
        )
    return StepsRecord(tuple(parts), len(value))


def _rank(steps: Steps | StepList, place: int) -> tuple[bool, int]:
    """What is listed before other steps: the first and last few, and those that communicate; from the ends inward."""
    from_end = min(place, len(steps) - 1 - place)
    return from_end >= _ENDS and not steps[place].collectives, from_end


@adapt.register
def _collective(value: Collective) -> Record:
    return collectives_record(CollectiveTable([value]))


@adapt.register
def _step(value: Step) -> Record:
    return step_record(value, picture=True)


def adapt_briefly(value: Shown) -> Record:
    """The record of a value without what text does not say."""
    if isinstance(value, Expansion):
        return expansion_record(value, modules=False)
    if isinstance(value, Step):
        return step_record(value)
    return adapt(value)
