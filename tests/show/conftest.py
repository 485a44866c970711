from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.show.models import expanded

if TYPE_CHECKING:
    import spmd_lab as sl
    from spmd_lab.prove import VerifyReport


@pytest.fixture(scope="session")
def expansion() -> sl.Expansion:
    return expanded()


@pytest.fixture(scope="session")
def report(expansion: sl.Expansion) -> VerifyReport:
    return expansion.program.verify()


@pytest.fixture(scope="session")
def step(expansion: sl.Expansion) -> sl.Step:
    """The first step that communicates."""
    return next(step for step in expansion.steps if step.collectives)
