"""Calls of a distributed module: whatever a rank passes, all ranks run one program, or all refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.run import call_cases as cases

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.run.pool import RankPool


@pytest.mark.parametrize(
    "case",
    [
        cases.new_shapes,
        cases.same_shape_here_another_there,
        cases.constants,
        cases.whole_inputs,
        cases.distributed_inputs,
        cases.other_strides,
        cases.gradient_of_an_input,
        cases.without_gradients,
        cases.frozen,
        cases.autocast,
        cases.loss_inside,
        cases.loss_in_module,
        cases.summed_gradients,
        cases.gradients_accumulate,
        cases.gradients_wait,
        cases.gradients_are_apart,
        cases.tied_state,
        cases.first_rank_decides,
    ],
    ids=lambda case: case.__name__,
)
def test_a_call(two_ranks: RankPool, case: Callable[[], None]) -> None:
    two_ranks.run(case)


def test_calls_that_do_not_belong_together_are_refused_on_every_rank(two_ranks: RankPool) -> None:
    for shapes, width, dims, dtype, arguments in two_ranks.run(cases.wrong_shapes):
        assert "rank 0 has 'input' of shape [3, 6]; its part of the whole [8, 6] is [4, 6]" in shapes
        assert "try: divide as torch.chunk does" in shapes
        assert "rank 1 has 'input' of shape [4, 7]; its part of the whole [8, 6] is [4, 6]" in width
        assert "'input' has 3 dims, in the example it had 2" in dims
        assert "rank 1 calls the module with other tensors than rank 0" in dtype
        assert "Linear cannot be called so" in arguments


def test_ranks_that_pass_different_flags_are_refused(two_ranks: RankPool) -> None:
    for text in two_ranks.run(cases.different_constants):
        assert "rank 1 calls the module with other flags than rank 0" in text
        assert "layout: rank 1: [('power', '3')" in text
