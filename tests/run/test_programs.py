"""Programs run on real gloo ranks and give what a single device gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.run import program_cases as cases

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.run.pool import RankPool


@pytest.mark.parametrize("case", [cases.moves, cases.reductions], ids=lambda case: case.__name__)
def test_every_collective_runs_on_gloo(two_ranks: RankPool, case: Callable[[], None]) -> None:
    two_ranks.run(case)


@pytest.mark.parametrize(
    ("name", "axes"), [("gpt2", ("dp",)), ("gpt2", ("tp",)), ("llama", ("tp",)), ("llama", ("dp",))]
)
def test_two_ranks_run_the_program_of_a_transformer(two_ranks: RankPool, name: str, axes: tuple[str, ...]) -> None:
    collectives = two_ranks.run(cases.transformer, name, axes)
    assert min(collectives) > 0


def test_four_ranks_run_the_program_of_a_transformer(four_ranks: RankPool) -> None:
    collectives = four_ranks.run(cases.transformer, "gpt2", ("dp", "tp"))
    assert min(collectives) > 0


@pytest.mark.parametrize(("name", "axes"), [("gpt2", ("dp",)), ("llama", ("tp",)), ("bert", ("dp",))])
def test_two_ranks_train_a_transformer(two_ranks: RankPool, name: str, axes: tuple[str, ...]) -> None:
    two_ranks.run(cases.distributed_transformer, name, axes)


def test_four_ranks_train_a_transformer(four_ranks: RankPool) -> None:
    four_ranks.run(cases.distributed_transformer, "gpt2", ("dp", "tp"))


def test_a_mesh_may_be_a_part_of_the_world(four_ranks: RankPool) -> None:
    four_ranks.run(cases.part_of_the_world)
