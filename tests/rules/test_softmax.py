"""Softmax and what is made of it, with rows divided or rows whole, equal the whole."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import spmd_lab as sl
from spmd_lab.rules import layer_norm, softmax
from tests.rules.every_way import run_every_way

MESH = sl.Mesh(dp=2, tp=4)
aten = torch.ops.aten


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize(("dim", "dtype"), [(0, torch.float32), (-1, torch.float32), (-1, torch.bfloat16)])
def test_every_way(monkeypatch: pytest.MonkeyPatch, dim: int, dtype: torch.dtype, log: bool) -> None:
    x = torch.randn(5, 2, 6, dtype=dtype) * 4
    forward = torch.log_softmax if log else torch.softmax
    assert run_every_way(monkeypatch, softmax, lambda x: forward(x, dim), [x]) == 12
    backward = aten._log_softmax_backward_data if log else aten._softmax_backward_data
    tensors = [torch.randn_like(x), forward(x, dim)]
    assert run_every_way(monkeypatch, softmax, lambda grad, out: backward(grad, out, dim, dtype), tensors) == 20


@pytest.mark.parametrize("layout", ["a/tp b", "a/dp/tp b", "a/tp/dp b", "a b/tp/dp", "a/dp b/tp"])
def test_a_row_that_is_masked_in_part(layout: str) -> None:
    """What is masked out may be all that a rank has of a row."""
    keep = torch.ones(5, 6, dtype=torch.bool)
    keep[2:, :2] = False
    keep[0] = torch.tensor([False, False, False, False, True, True])

    def attend(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).masked_fill(~keep, float("-inf")).softmax(-1)

    x = torch.randn(5, 6, requires_grad=True)
    expansion = sl.expand(sl.trace(attend, x), MESH, inputs={"x": layout}, unsupported="error")
    expansion.program.verify().raise_if_wrong()


@pytest.mark.parametrize("layout", ["a/tp b c", "a/dp b/tp c", "a/tp/dp b c", "a b c/tp"])
def test_layer_norm(layout: str) -> None:
    def normalise(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x * 1.5, (6,), weight, bias) + F.rms_norm(x, (6,), weight)

    tensors = [torch.randn(shape, requires_grad=True) for shape in ((5, 3, 6), (6,), (6,))]
    expansion = sl.expand(sl.trace(normalise, *tensors), MESH, inputs={"x": layout}, unsupported="error")
    expansion.program.verify().raise_if_wrong()
    if "c/tp" not in layout:
        assert {each.kind for each in expansion.collectives} <= {"all_reduce"}, "no element travels"


def test_every_way_of_a_layer_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = torch.randn(5, 2, 6), torch.randn(6), torch.randn(6)
    assert run_every_way(monkeypatch, layer_norm, lambda *t: F.layer_norm(t[0], (6,), *t[1:]), [x, weight, bias]) == 6
    out, mean, scale = aten.native_layer_norm(x, (6,), weight, bias, 1e-5)

    def backward(*tensors: torch.Tensor) -> object:
        grad, x, mean, scale, weight, bias = tensors
        return aten.native_layer_norm_backward(grad, x, (6,), mean, scale, weight, bias, [True] * 3)

    assert run_every_way(monkeypatch, layer_norm, backward, [out, x, mean, scale, weight, bias]) == 6
