"""Means and variances over divided dims equal those of the whole, however unevenly they are divided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import spmd_lab as sl
from spmd_lab.rules import statistics
from tests.rules.every_way import run_every_way

if TYPE_CHECKING:
    from collections.abc import Callable

MESH = sl.Mesh(dp=2, tp=4)
STATISTICS: dict[str, Callable[..., Any]] = {
    "mean": lambda x: x.mean(),
    "mean of a dim": lambda x: x.mean(0),
    "mean of two dims": lambda x: x.mean((0, -1), keepdim=True),
    "variance": lambda x: x.var(),
    "variance of a dim": lambda x: x.var(1, correction=0, keepdim=True),
    "deviation": lambda x: x.std((0, 2)),
    "variance and mean": lambda x: torch.var_mean(x, 0),
    "deviation and mean": lambda x: torch.std_mean(x, (1, 2), keepdim=True),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_every_way(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert run_every_way(monkeypatch, statistics, STATISTICS[name], [torch.randn(5, 2, 6)]) >= 12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64])
def test_every_way_in_other_dtypes(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    x = torch.randn(5, 6).to(dtype) + 3
    assert run_every_way(monkeypatch, statistics, lambda x: torch.var_mean(x, 0), [x])
    assert run_every_way(monkeypatch, statistics, lambda x: x.mean(0), [x])


@pytest.mark.parametrize("layout", ["a/tp/dp b", "a/tp b/dp", "a b/tp {avg: dp}"])
@pytest.mark.parametrize("name", ["mean", "mean of a dim", "variance", "variance of a dim", "variance and mean"])
def test_both_orders_and_gradients(name: str, layout: str) -> None:
    x = torch.randn(5, 6, requires_grad=True)
    traced = sl.trace(lambda x: STATISTICS[name](x * 1.5), x)
    expansion = sl.expand(traced, MESH, inputs={"x": layout}, unsupported="error")
    expansion.program.verify().raise_if_wrong()
    if "{" not in layout:
        assert {each.kind for each in expansion.collectives} <= {"all_reduce"}, "no element travels"


def test_a_variance_far_from_zero_does_not_cancel() -> None:
    """As the mean of squares less the square of the mean it would be wrong in every digit."""
    x = torch.randn(1001) + 4096
    traced = sl.trace(lambda x: x.var(), x, backward=False)
    sl.expand(traced, sl.Mesh(dp=4), inputs={"x": "n/dp"}).program.verify({"x": x}).raise_if_wrong()


def test_a_mean_of_a_small_dtype_does_not_overflow() -> None:
    x = torch.full((700, 100), 100.0, dtype=torch.float16)
    for layout in ("a/tp b", "a/dp b/tp"):
        traced = sl.trace(lambda x: x.mean(), x, backward=False)
        sl.expand(traced, MESH, inputs={"x": layout}).program.verify({"x": x}).raise_if_wrong()


def test_too_few_elements_give_what_they_give_on_one_device() -> None:
    """A variance of one element is no number; of none neither."""
    for shape in ((1, 3), (0, 3)):
        traced = sl.trace(lambda x: (x.var(0), x.mean(0)), torch.randn(shape), backward=False)
        sl.expand(traced, sl.Mesh(dp=4), inputs={"x": "n/dp c"}).program.verify().raise_if_wrong()
