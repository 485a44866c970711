"""A gather on CPUs leaves memory whole; torch's own kernel for it does not (see `torch_internals.gloo`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.run import gather_cases as cases

if TYPE_CHECKING:
    from tests.run.pool import RankPool

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.bool, torch.complex64, torch.complex128)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 2), (5,), (0, 2), (2, 0)], ids=str)
def test_gathers_are_those_of_torch(two_ranks: RankPool, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    for found, expected in two_ranks.run(cases.gathered, dtype, shape):
        assert torch.equal(found, expected)
        assert found.dtype == dtype


def test_thousands_of_gathers_leave_the_process_alive(two_ranks: RankPool) -> None:
    """torch's kernel ended processes within some 2,000 of these calls."""
    assert two_ranks.run(cases.many_gathers, 2000, 8) == [True, True]
