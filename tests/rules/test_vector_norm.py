"""Norms of vectors, divided in every way that the rule offers, equal the whole."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import spmd_lab as sl
from spmd_lab.rules import vector_norm
from tests.rules.every_way import run_every_way


@pytest.mark.parametrize("order", [2, 1, 0, 3, 0.5, math.inf, -math.inf, -1])
@pytest.mark.parametrize("dim", [None, [0], [0, -1]])
def test_every_way(monkeypatch: pytest.MonkeyPatch, order: float, dim: list[int] | None) -> None:
    def op(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.linalg_vector_norm(x, order, dim, dim == [0])

    x = torch.randn(5, 2, 6)
    x[0, 0, :3] = 0
    if order < 0 and dim is None:
        pytest.skip("nothing is divided: zero is not neutral for a negative order")
    assert run_every_way(monkeypatch, vector_norm, op, [x])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64])
def test_powers_of_a_small_dtype_do_not_overflow(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    x = torch.full((6, 50), 100.0, dtype=dtype)
    assert run_every_way(monkeypatch, vector_norm, lambda x: torch.linalg.vector_norm(x), [x])


def test_the_gradient_of_a_norm() -> None:
    x = torch.randn(5, 6, requires_grad=True)
    traced = sl.trace(lambda x: x / x.norm() + F.normalize(x, dim=1), x, loss=lambda out: out.square().mean())
    expansion = sl.expand(traced, sl.Mesh(dp=2, tp=4), inputs={"x": "b/dp d/tp"}, unsupported="error")
    expansion.program.verify().raise_if_wrong()
