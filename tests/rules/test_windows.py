"""Windows on tensors and their gradients, divided in every way that the rules offer, equal the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F

import spmd_lab as sl
from spmd_lab.rules import windows
from tests.rules.every_way import run_every_way

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten
OPERATORS: dict[str, tuple[Callable[[torch.Tensor], object], tuple[int, ...]]] = {
    "select_backward": (lambda grad: aten.select_backward(grad, (5, 4, 6), 1, -1), (5, 6)),
    "slice_backward": (lambda grad: aten.slice_backward(grad, (5, 4, 6), 1, 1, 3, 1), (5, 2, 6)),
    "slice_backward of all": (lambda grad: aten.slice_backward(grad, (5, 6), 0, 0, 2**63 - 1, 1), (5, 6)),
    "unfold": (lambda x: x.unfold(1, 2, 2), (5, 4, 6)),
    "unfold_backward": (lambda grad: aten.unfold_backward(grad, (5, 4, 6), 1, 2, 1), (5, 3, 6, 2)),
    "unfold_backward of what is stretched": (lambda grad: aten.unfold_backward(grad, (5, 4, 8), 2, 4, 2), (1, 4, 3, 4)),
    "diagonal": (lambda x: x.diagonal(1, 0, -1), (5, 3, 6)),
    "diagonal_backward": (lambda grad: aten.diagonal_backward(grad, (5, 3, 6), 1, 0, -1), (3, 5)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (5, 4, 2, 3)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), (5, 1, 4, 6)),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), (5, 4, 2, 3)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_every_way(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    op, shape = OPERATORS[name]
    assert run_every_way(monkeypatch, windows, op, [torch.randn(shape)]) >= 9


@pytest.mark.parametrize("layout", ["a/y b c", "a b/y c", "a/y/x b c", "a/x b c/y"])
def test_gradients_keep_what_is_divided(layout: str) -> None:
    def look(x: torch.Tensor) -> torch.Tensor:
        x = x * 1.5
        return x[:, 1:3].sum() + x[:, None, -1].square().sum() + x.unfold(1, 2, 1).exp().sum() + x[..., ::2].sum()

    x = torch.randn(5, 4, 6, requires_grad=True)
    expansion = sl.expand(sl.trace(look, x), sl.Mesh(x=2, y=4), inputs={"x": layout}, unsupported="error")
    expansion.program.verify().raise_if_wrong()
    if layout in ("a/y b c", "a/y/x b c"):
        assert {each.kind for each in expansion.collectives} == {"all_reduce"}
