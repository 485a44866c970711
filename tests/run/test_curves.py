"""Real models learn on real ranks as they do on a single device, and go on from checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.run import curve_cases as cases

if TYPE_CHECKING:
    from pathlib import Path

    from tests.run.pool import RankPool


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("mesh", ["dp=2", "tp=2"])
def test_the_loss_falls_as_on_a_single_device(two_ranks: RankPool, name: str, mesh: str) -> None:
    two_ranks.run(cases.curve, name, mesh)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_loss_falls_as_on_a_single_device_on_two_axes(four_ranks: RankPool, name: str) -> None:
    four_ranks.run(cases.curve, name, "2x2")


def test_the_loss_falls_as_on_a_single_device_with_dropout(two_ranks: RankPool) -> None:
    two_ranks.run(cases.curve, "gpt2", "dp=2", cases.drop)


def test_a_checkpoint_goes_on_elsewhere(four_ranks: RankPool, tmp_path: Path) -> None:
    four_ranks.run(cases.resume, str(tmp_path))


def test_the_norm_of_a_gradient_is_that_of_the_whole(four_ranks: RankPool) -> None:
    four_ranks.run(cases.clipped)
