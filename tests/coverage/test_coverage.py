"""A fixed fraction of the coverage run, and the harness itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import spmd_lab as sl
from tests.coverage import pool
from tests.coverage.__main__ import PAGE
from tests.coverage.known import known_kinds
from tests.coverage.operators import operators, samples
from tests.coverage.outcome import CaseOutcome, OperatorOutcome
from tests.coverage.second_opinion import disagreement, wrong_shape
from tests.coverage.summary import KINDS_IN_WORDS, counts, table

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
BAD = ("wrong", "crashed")


def fraction() -> list[str]:
    """One operator in sixteen, wherever its name falls."""
    return [name for name in sorted(operators()) if zlib.crc32(name.encode()) % 16 == 0]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, OperatorOutcome]:
    file = tmp_path_factory.mktemp("coverage") / "outcomes.json"
    command = [sys.executable, "-m", "tests.coverage", "--samples=3", f"--json={file}", "--ops", *fraction()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert file.exists(), done.stderr
    records = [json.loads(line) for line in file.read_text().splitlines()]
    return {record["name"]: OperatorOutcome.from_record(record) for record in records}


def test_the_fraction_is_a_spread(outcomes: dict[str, OperatorOutcome]) -> None:
    assert sorted(outcomes) == fraction()
    assert 40 <= len(outcomes) <= 60
    assert sum(len(each.cases) for each in outcomes.values()) > 500


def test_no_operator_is_wrong_or_crashes(outcomes: dict[str, OperatorOutcome]) -> None:
    assert not {name: each.reason for name, each in outcomes.items() if each.kind in BAD}
    assert not {name for name, kind in known_kinds().items() if kind in BAD}


def test_what_was_equal_stays_equal(outcomes: dict[str, OperatorOutcome]) -> None:
    equal = {name for name, kind in known_kinds().items() if kind == "equal"}
    lost = {name: each.reason for name, each in outcomes.items() if name in equal and each.kind != "equal"}
    assert len(equal) > 660
    assert not lost


def test_the_page_is_that_of_the_last_full_run() -> None:
    known = known_kinds()
    page = PAGE.read_text()
    if f"torch {torch.__version__.partition('+')[0]}" in page:
        assert sorted(known) == sorted(operators())
    for kind, words in KINDS_IN_WORDS.items():
        assert f"| {words} | {sum(each == kind for each in known.values())} |" in page


def test_samples_are_the_same_each_time() -> None:
    once, again = samples("cat", 5), samples("cat", 5)
    assert [each.number for each in once] == [each.number for each in again]
    for one, other in zip(once, again, strict=True):
        torch.testing.assert_close(one.tensors, other.tensors, rtol=0, atol=0)
        torch.testing.assert_close(one.call(*one.tensors), one.call(*other.tensors), rtol=0, atol=0)


def test_fewer_samples_are_among_more() -> None:
    few, many = samples("sum", 3), samples("sum", 5)
    assert {each.number for each in few} <= {each.number for each in many}
    assert len(many) == 5


def test_an_operator_is_its_worst_case() -> None:
    cases = [CaseOutcome(0, "4: R", "equal"), CaseOutcome(0, "4: P", "refused", "why"), CaseOutcome(1, "4: R", "equal")]
    outcome = OperatorOutcome("some", "float32", cases)
    assert (outcome.kind, outcome.reason) == ("refused", "why")
    assert OperatorOutcome.from_record(json.loads(json.dumps(outcome.as_record()))) == outcome
    assert "| refused by a named error on some | 1 | 100.0% | 1 |" in counts([outcome])
    assert "- why (1): some (1 of 3 cases)" in table([outcome])


def test_the_second_opinion_objects() -> None:
    x = torch.randn(5, 3, requires_grad=True)
    program = sl.rebuild(sl.expand(sl.trace(torch.tanh, x), sl.Mesh(x=4), inputs=["a/x b"]))
    assert disagreement(program, torch.tanh) == ""
    assert "out" in disagreement(program, lambda x: torch.tanh(x) + 0.1)
    assert "grad(args[0])" in disagreement(program, lambda x: torch.tanh(x.detach()) + x - x.detach())
    assert wrong_shape(program) == ""


def _scripted(name: str, count: int, quick: bool = False) -> Iterator[CaseOutcome]:
    """Operators that behave as they are called."""
    yield CaseOutcome(0, "4: R", "equal")
    if name == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "hangs":
        time.sleep(60)
    while name == "spins":
        pass
    if name == "raises":
        raise RuntimeError
    if name == "leaves":
        sys.exit(0)


def test_an_operator_that_dies_or_hangs_costs_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "outcomes", _scripted)
    monkeypatch.setattr(pool, "dtype_name", lambda name: "float32")
    names = ["dies", "hangs", "spins", "raises", "leaves", "ends", "ends"]
    found = [(each.name, each.kind, each.reason) for each in pool.run_all(names, samples=1, timeout=1.0)]
    assert sorted(found) == [
        ("dies", "crashed", "its process died of SIGKILL"),
        ("ends", "equal", ""),
        ("ends", "equal", ""),
        ("hangs", "too slow", "more than 1 s; 1 cases done"),
        ("leaves", "crashed", "its samples could not be made or judged"),
        ("raises", "crashed", "its samples could not be made or judged"),
        ("spins", "too slow", "more than 1 s; 1 cases done"),
    ]
