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
