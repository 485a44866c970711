"""Elementwise operators, divided in every way that the rule offers, equal the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from spmd_lab.rules import elementwise
from tests.rules.every_way import run_every_way

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten
X, ROW, NUMBER = (5, 3), (3,), ()

CASES: dict[str, tuple[Callable[..., object], list[tuple[int, ...]]]] = {
    "prelu_backward": (aten._prelu_kernel_backward.default, [X, X, (1, 3)]),
    "complex": (aten.complex.default, [X, ROW]),
    "copy": (aten.copy.default, [X, ROW]),
    "fill": (aten.fill.Tensor, [X, NUMBER]),
    "hardsigmoid_backward": (aten.hardsigmoid_backward.default, [X, X]),
    "hardswish_backward": (aten.hardswish_backward.default, [X, X]),
    "hardtanh_backward": (lambda grad, x: aten.hardtanh_backward(grad, x, -0.5, 0.5), [X, X]),
    "log_sigmoid_backward": (aten.log_sigmoid_backward.default, [X, X, X]),
    "polar": (aten.polar.default, [X, (5, 1)]),
}


@pytest.mark.parametrize("name", CASES)
def test_every_way(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    op, shapes = CASES[name]
    assert run_every_way(monkeypatch, elementwise, op, [torch.randn(shape) for shape in shapes])


def test_every_way_of_a_conjugate(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_every_way(monkeypatch, elementwise, aten._conj_physical.default, [torch.randn(5, 3, dtype=torch.cfloat)])
