"""A distributed module trains on real ranks as on a single device, and as under DDP."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.run import training_cases as cases

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.run.pool import RankPool


@pytest.mark.parametrize("placements", cases.PLACEMENTS)
def test_a_stack_of_layers_trains_as_under_ddp(two_ranks: RankPool, placements: str) -> None:
    two_ranks.run(cases.train, cases.stack, "adam", placements, 100, 100, 100)


@pytest.mark.parametrize("placements", cases.PLACEMENTS)
@pytest.mark.parametrize("optimizer", cases.OPTIMIZERS)
def test_optimizers_step_as_on_a_single_device(two_ranks: RankPool, optimizer: str, placements: str) -> None:
    two_ranks.run(cases.train, cases.mlp, optimizer, placements, 128, 50, 8)


def test_four_ranks_train_with_uneven_shards(four_ranks: RankPool) -> None:
    four_ranks.run(cases.train, cases.uneven, "fused adam", "sharded", 128, 50, 6)


@pytest.mark.parametrize(
    "case",
    [
        cases.layer_norm,
        cases.sequential,
        cases.parallel,
        cases.cat_of_weight,
        cases.baked_in_shape,
        cases.hybrid,
        cases.buffer_with_gradient,
        cases.batch_norm,
        cases.averaged,
        cases.dropout,
        cases.from_meta,
        cases.let_go,
    ],
    ids=lambda case: case.__name__,
)
def test_outputs_gradients_and_buffers_equal_the_single_device_run(
    two_ranks: RankPool, case: Callable[[], None]
) -> None:
    two_ranks.run(case)


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("axis", ["dp", "tp"])
def test_the_compiled_program_trains_too(two_ranks: RankPool, axis: str) -> None:
    two_ranks.run(cases.compiled, axis)
