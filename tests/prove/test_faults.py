"""A program with one mistake is not proved, and the step of the mistake is named."""

from __future__ import annotations

import pytest

from tests.prove.faults import KINDS, Fault, Outcome, faults_of, outcome_of, sampled
from tests.prove.faults.outcome import values_differ
from tests.prove.specimens import SPECIMENS

OF_KIND = 7


@pytest.fixture(scope="module")
def faults() -> list[Fault]:
    """A fixed sample."""
    return sampled(OF_KIND)


@pytest.fixture(scope="module")
def outcomes(faults: list[Fault]) -> dict[str, list[tuple[str, Outcome]]]:
    """What became of each fault, by kind."""
    found: dict[str, list[tuple[str, Outcome]]] = {kind: [] for kind in KINDS}
    for fault in faults:
        found[fault.kind].append((str(fault), outcome_of(fault)))
    return found


def test_the_sample_has_every_kind_and_every_specimen(faults: list[Fault]) -> None:
    assert {fault.kind for fault in faults} == set(KINDS)
    assert {fault.specimen for fault in faults} == set(SPECIMENS)


def test_the_exact_step_is_named_in_99_of_100(outcomes: dict[str, list[tuple[str, Outcome]]]) -> None:
    every = [pair for pairs in outcomes.values() for pair in pairs]
    changed = [pair for pair in every if pair[1] is not Outcome.HARMLESS]
    named = [pair for pair in changed if pair[1] is Outcome.NAMED]
    assert len(changed) >= 100
    assert len(named) >= 0.99 * len(changed), [pair for pair in changed if pair[1] is not Outcome.NAMED]


def test_every_kind_breaks_something(outcomes: dict[str, list[tuple[str, Outcome]]]) -> None:
    """What changes nothing is a matter of numbers alone, and never the rule."""
    for kind, pairs in outcomes.items():
        assert any(outcome is Outcome.NAMED for _, outcome in pairs), kind


@pytest.mark.parametrize("kind", ["dropped", "doubled", "wrong kind"])
def test_reductions_whose_terms_are_zero_or_cancel_are_missed_too(kind: str) -> None:
    """Only the layouts, followed through the graph, show these."""
    faults = faults_of("zeros", kind)
    assert faults
    for fault in faults:
        assert not values_differ(fault.program, fault.broken)
        assert outcome_of(fault) is Outcome.NAMED, str(fault)


def test_a_right_specimen_is_proved() -> None:
    for build in SPECIMENS.values():
        build().verify().raise_if_wrong()
