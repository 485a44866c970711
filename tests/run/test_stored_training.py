"""Parameters that rest divided train on real ranks as on a single device, as under DDP and as under FSDP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.run import stored_cases as cases

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.run.pool import RankPool


@pytest.mark.parametrize("regather", [True, False], ids=["gathered twice", "gathered once"])
def test_training_equals_a_single_device_and_ddp(two_ranks: RankPool, regather: bool) -> None:
    two_ranks.run(cases.trains, regather)


def test_four_ranks_train_with_uneven_shards(four_ranks: RankPool) -> None:
    four_ranks.run(cases.trains, True)


def test_training_equals_fsdp(two_ranks: RankPool) -> None:
    two_ranks.run(cases.trains_as_under_fsdp)


def test_matrices_are_divided_in_use_and_further_at_rest(four_ranks: RankPool) -> None:
    four_ranks.run(cases.trains_below_tensor_parallelism)


def test_copies_of_shards_train_together(four_ranks: RankPool) -> None:
    four_ranks.run(cases.trains_on_copies)


@pytest.mark.parametrize("case", [cases.called_in_other_ways, cases.buffers], ids=lambda case: case.__name__)
def test_calls_of_every_kind(two_ranks: RankPool, case: Callable[[], None]) -> None:
    two_ranks.run(case)
