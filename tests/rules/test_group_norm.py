"""Group norm, divided in every way that the rules offer, equals the whole."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import spmd_lab as sl
from spmd_lab.rules import group_norm
from tests.rules.every_way import run_every_way

aten = torch.ops.aten
SHAPES = {"images": ((5, 8, 2, 3), 4), "rows": ((6, 8), 8), "sounds_of_a_few_groups": ((3, 6, 4), 2)}


@pytest.mark.parametrize("name", SHAPES)
def test_every_way(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    shape, groups = SHAPES[name]
    x, weight, bias = torch.randn(shape), torch.randn(shape[1]), torch.randn(shape[1])
    sizes = (shape[0], shape[1], x[0, 0].numel(), groups)
    forward = lambda x, *scales: aten.native_group_norm(x, *(scales or (None, None)), *sizes, 1e-5)  # noqa: E731
    assert run_every_way(monkeypatch, group_norm, forward, [x, weight, bias])
    assert run_every_way(monkeypatch, group_norm, forward, [x])
    _, mean, rstd = forward(x, weight, bias)

    def backward(grad: torch.Tensor, x: torch.Tensor, *rest: torch.Tensor) -> object:
        mean, rstd, weight = (*rest, None)[:3]
        return aten.native_group_norm_backward(grad, x, mean, rstd, weight, *sizes, [True] + [weight is not None] * 2)

    assert run_every_way(monkeypatch, group_norm, backward, [torch.randn(shape), x, mean, rstd, weight])
    assert run_every_way(monkeypatch, group_norm, backward, [torch.randn(shape), x, mean, rstd])


@pytest.mark.parametrize(
    "placement", ["n/dp c/tp h w", "n c/dp/tp h w", "n/tp/dp c h w", "n c h/tp w", "n c h w {sum: tp}"]
)
def test_a_norm_and_its_gradients(placement: str) -> None:
    x, weight = torch.randn(5, 8, 2, 2, requires_grad=True), torch.randn(8, requires_grad=True)
    traced = sl.trace(lambda x, w: F.silu(F.group_norm(x, 8, w)), x, weight, loss=lambda out: out.square().mean())
    expansion = sl.expand(traced, sl.Mesh(dp=2, tp=4), inputs={"x": placement}, unsupported="error")
    expansion.program.verify().raise_if_wrong()
