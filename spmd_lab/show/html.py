"""Every record as HTML: nested details and tables, everything escaped, no script, no style sheet, no id."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING

from spmd_lab.show.expansion_html import expansion_html
from spmd_lab.show.fragments import arguments_html, code_html, collective_rows, group_rows
from spmd_lab.show.markup import Html, bold, escaped, joined, muted, tag
from spmd_lab.show.report_html import report_html
from spmd_lab.show.sentences import collectives_sentence, gap_sentence, program_sentence, step_sentence, trace_sentence
from spmd_lab.show.step_html import step_body, step_details
from spmd_lab.show.theme import FRAME
from spmd_lab.show.units import counted
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
    from spmd_lab.show.part_records import CodeRecord

__all__ = ["html"]

_STATEMENTS = 60


def html(record: object) -> str:
    """A record as a fragment of HTML that needs nothing else."""
    return tag("div", _body(record), style=FRAME)


@singledispatch
def _body(record: object) -> Html:
    raise TypeError(f"no HTML for a {type(record).__name__}")


@_body.register
def _trace(record: TraceRecord) -> Html:
    return _titled_code(trace_sentence(record), record.code)


@_body.register
def _program(record: ProgramRecord) -> Html:
    return _titled_code(program_sentence(record), record.code)


def _titled_code(sentence: str, record: CodeRecord) -> Html:
    arguments = arguments_html("argument", record.arguments)
    return joined(
        [_title(sentence), arguments, code_html(record, _STATEMENTS), arguments_html("result", record.results)]
    )


def _title(sentence: str) -> Html:
    """A sentence whose subject is bold."""
    subject, separator, rest = sentence.partition(" ")
    return tag("div", bold(subject), escaped(separator + rest))


@_body.register
def _step(record: StepRecord) -> Html:
    return joined([_title(step_sentence(record)), step_body(record)])


@_body.register
def _steps(record: StepsRecord) -> Html:
    """One line for each, which unfolds."""
    title = tag("div", bold(counted(record.count, "step")))
    return joined(
        [title, *(_gap(part) if isinstance(part, GapRecord) else step_details(part) for part in record.parts)]
    )


def _gap(record: GapRecord) -> Html:
    return tag("div", muted(gap_sentence(record)))


@_body.register
def _collectives(record: CollectivesRecord) -> Html:
    title = tag("div", bold(collectives_sentence(record)))
    return joined([title, collective_rows(record.rows, record.left_out)]) if record.rows else title


@_body.register
def _groups(record: GroupsRecord) -> Html:
    return (
        group_rows(record.groups, record.by, record.left_out)
        if record.groups
        else escaped(f"no collectives by {record.by}")
    )


@_body.register
def _expansion(record: ExpansionRecord) -> Html:
    return expansion_html(record)


@_body.register
def _report(record: ReportRecord) -> Html:
    return report_html(record)
