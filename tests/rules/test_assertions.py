"""An assertion on a pending truth value is made piece by piece."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import spmd_lab as sl


@pytest.mark.parametrize("rows", [8, 5])
def test_an_assertion_moves_nothing(rows: int) -> None:
    """One-hot checks its indices as it is traced."""
    traced = sl.trace(lambda x: F.one_hot(x, 4), torch.randint(4, (rows, 3)))
    expansion = sl.expand(traced, sl.Mesh(dp=2, tp=2), inputs=["b/dp/tp ..."], unsupported="error")
    expansion.program.verify().raise_if_wrong()
    checks = [step.name for step in expansion.steps if "assert" in step.op]
    assert len(checks) >= 2
    assert not [each for each in expansion.collectives if each.step in checks]


@pytest.mark.parametrize("rows", [8, 5])
def test_what_is_asserted_of_all_stays_pending(rows: int) -> None:
    traced = sl.trace(lambda x: torch._assert_async(torch._is_all_true(x < 9)), torch.randn(rows, 3))
    for layout in ("b/dp/tp d", "b/dp d/tp"):
        expansion = sl.expand(traced, sl.Mesh(dp=2, tp=2), inputs=[layout], unsupported="error")
        assert not expansion.collectives
        expansion.program.verify().raise_if_wrong()
