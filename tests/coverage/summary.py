"""The table: how many operators are equal, refused, wrong, and which ones."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from tests.coverage.outcome import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.coverage.outcome import Kind, OperatorOutcome

__all__ = ["KINDS_IN_WORDS", "counts", "failures", "fallbacks", "refusals", "table"]


def counts(outcomes: Sequence[OperatorOutcome]) -> str:
    """The numbers, as the rows of a table."""
    usable = [each for each in outcomes if each.kind != "no sample"]
    rows = [(kind, [each for each in outcomes if each.kind == kind]) for kind in KINDS_IN_WORDS]
    lines = ["| operators | number | of those with a usable sample | cases |", "|---|---|---|---|"]
    lines += [
        _row(KINDS_IN_WORDS[kind], len(found), len(usable) if kind != "no sample" else 0, _cases(usable, kind))
        for kind, found in rows
    ]
    fallback = [each for each in usable if each.fallbacks]
    lines.append(
        _row("a step is gathered in some layout (fallback)", len(fallback), len(usable), _with_fallback(usable))
    )
    graded = [each for each in usable if each.has_gradients]
    lines.append(_row("gradients compared too", len(graded), len(usable), _with_gradients(usable)))
    total = sum(len(each.cases) for each in usable)
    lines.append(_row("all", len(outcomes), 0, total))
    return "\n".join(lines)


KINDS_IN_WORDS: dict[Kind, str] = {
    "equal": "equal on all samples and layouts",
    "refused": "refused by a named error on some",
    "wrong": "wrong on some: the proof says so",
    "crashed": "crashed on some: another error",
    "too slow": "too slow",
    "no sample": "no usable sample",
}


def _row(what: str, count: int, of: int, cases: int) -> str:
    return f"| {what} | {count} | {f'{count / of:.1%}' if of else ''} | {cases or ''} |"


def _cases(outcomes: Iterable[OperatorOutcome], kind: Kind) -> int:
    return sum(case.kind == kind for each in outcomes for case in each.cases)


def _with_fallback(outcomes: Iterable[OperatorOutcome]) -> int:
    return sum(bool(case.fallbacks) for each in outcomes for case in each.cases)


def _with_gradients(outcomes: Iterable[OperatorOutcome]) -> int:
    return sum(case.gradients for each in outcomes for case in each.cases)


def failures(outcomes: Sequence[OperatorOutcome], kind: Kind) -> list[str]:
    """One line per operator of a kind: how many of its cases, where first, and why."""
    lines = []
    for each in sorted(outcomes, key=lambda outcome: outcome.name):
        if each.kind == kind:
            bad = [case for case in each.cases if case.kind == kind]
            where = next(case for case in bad if case.reason == each.reason)
            place = f"sample {where.sample}, {where.layout or 'any layout'}" if where.sample >= 0 else "all"
            lines.append(f"{each.name}: {len(bad)} of {len(each.cases)} cases; {place}: {each.reason}")
    return lines


def refusals(outcomes: Sequence[OperatorOutcome]) -> list[str]:
    """One line per kind of refusal, the most frequent first: the reason without the operator, and who has it."""
    found: dict[str, list[str]] = defaultdict(list)
    for each in sorted(outcomes, key=lambda outcome: outcome.name):
        if each.kind == "refused":
            bad = sum(case.kind == "refused" for case in each.cases)
            share = "" if bad == len(each.cases) else f" ({bad} of {len(each.cases)} cases)"
            found[_OPERATOR.sub(r"\1…", each.reason)].append(each.name + share)
    ordered = sorted(found, key=lambda reason: (-len(found[reason]), reason))
    return [f"{reason} ({len(found[reason])}): {', '.join(found[reason])}" for reason in ordered]


_OPERATOR = re.compile(r"^(\w+Error: )\S+")


def fallbacks(outcomes: Sequence[OperatorOutcome]) -> list[str]:
    """One line per gathered operator: how many entries of the table it is in, and why; the most frequent first."""
    users: dict[str, set[str]] = defaultdict(set)
    reasons: dict[str, str] = {}
    for each in outcomes:
        for text in each.fallbacks:
            op, _, reason = text.partition(": ")
            users[op].add(each.name)
            reasons.setdefault(op, reason)
    ordered = sorted(users, key=lambda op: (-len(users[op]), op))
    return [f"{op}: {len(users[op])} ({', '.join(sorted(users[op])[:4])}): {reasons[op]}" for op in ordered]


def table(outcomes: Sequence[OperatorOutcome]) -> str:
    """Everything: the numbers, then the list of each kind but the equal ones, then what is gathered."""
    parts = [counts(outcomes)]
    for kind in KINDS:
        if kind in ("equal", "no sample"):
            continue
        lines = refusals(outcomes) if kind == "refused" else failures(outcomes, kind)
        if lines:
            parts.append(f"## {kind.capitalize()}\n\n" + "\n".join(f"- {_plain(line)}" for line in lines))
    unusable = [each.name for each in outcomes if each.kind == "no sample"]
    if unusable:
        parts.append(f"## No usable sample ({len(unusable)})\n\n{', '.join(sorted(unusable))}")
    gathered = fallbacks(outcomes)
    if gathered:
        lines = "\n".join(f"- {_plain(line)}" for line in gathered)
        parts.append(f"## Gathered for want of a rule: {len(gathered)} ATen operators\n\n{lines}")
    return "\n\n".join(parts) + "\n"


def _plain(line: str) -> str:
    """Text that Markdown shows as it is."""
    return line.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_").replace("<", "\\<")
