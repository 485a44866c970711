"""A distributed module sends what its program says that it sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spmd_lab.rewrite import PASSES
from tests.run import traffic_cases as cases

if TYPE_CHECKING:
    from tests.run.pool import RankPool


@pytest.mark.parametrize("passes", [(), tuple(PASSES)], ids=["as expanded", "with every pass"])
@pytest.mark.parametrize("placing", cases.PLACINGS)
def test_a_step_sends_what_its_program_says(two_ranks: RankPool, placing: str, passes: tuple[str, ...]) -> None:
    two_ranks.run(cases.traffic, placing, passes)
