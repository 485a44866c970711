"""Convolutions, divided in every way that their rules offer, equal the whole."""

from __future__ import annotations

import pytest
import torch

import spmd_lab as sl
from spmd_lab.rules import convolution
from tests.rules.every_way import run_every_way

aten = torch.ops.aten

KINDS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, object]]] = {
    "plain": ((5, 6, 4, 4), (3, 6, 3, 3), {"padding": [1, 1]}),
    "strided": ((2, 5, 7), (9, 5, 3), {"stride": [2], "dilation": [2]}),
    "transposed": ((3, 5, 3, 3), (5, 6, 2, 2), {"transposed": True, "stride": [2, 2], "output_padding": [1, 1]}),
    "depthwise": ((3, 5, 4, 4), (5, 1, 3, 3), {"groups": 5}),
    "groups": ((3, 8, 5), (12, 2, 2), {"groups": 4}),
    "transposed_groups": ((3, 8, 5), (8, 3, 2), {"groups": 4, "transposed": True}),
    "volume": ((2, 1, 3, 3, 3), (5, 1, 2, 2, 2), {}),
}


def options(image: tuple[int, ...], given: dict[str, object]) -> tuple[object, ...]:
    """Stride, padding, dilation, transposed, output_padding, groups."""
    n = len(image) - 2
    usual = {"stride": [1] * n, "padding": [0] * n, "dilation": [1] * n, "transposed": False, "output_padding": [0] * n}
    return tuple((usual | {"groups": 1} | given).values())


def output_channels(kernel: tuple[int, ...], given: dict[str, object]) -> int:
    return kernel[1] * int(str(given.get("groups", 1))) if given.get("transposed") else kernel[0]


@pytest.mark.parametrize("kind", KINDS)
def test_every_way(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    image, kernel, given = KINDS[kind]
    rest = options(image, given)
    x, weight, bias = torch.randn(image), torch.randn(kernel), torch.randn(output_channels(kernel, given))
    assert run_every_way(monkeypatch, convolution, lambda x, w, b: aten.convolution(x, w, b, *rest), [x, weight, bias])
    assert run_every_way(monkeypatch, convolution, lambda x, w: aten.convolution(x, w, None, *rest), [x, weight])


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_of_the_backward(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    image, kernel, given = KINDS[kind]
    rest = options(image, given)
    x, weight = torch.randn(image), torch.randn(kernel)
    grad = torch.randn_like(aten.convolution(x, weight, None, *rest))
    sizes = [output_channels(kernel, given)]

    def backward(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> object:
        return aten.convolution_backward(grad, x, weight, sizes, *rest, [True, True, True])

    assert run_every_way(monkeypatch, convolution, backward, [grad, x, weight])


def test_the_gradient_of_an_image_nobody_asked_for() -> None:
    model = torch.nn.Conv2d(3, 6, 3, bias=False)
    traced = sl.trace(model, torch.randn(5, 3, 4, 4), loss=lambda out: out.square().mean())
    for params in ({"weight": "o/tp ..."}, {"weight": "o i/tp h w"}):
        expansion = sl.expand(traced, sl.Mesh(dp=2, tp=2), batch="dp", params=params, unsupported="error")
        expansion.program.verify().raise_if_wrong()


def test_a_column_and_a_row_of_convolutions_move_nothing_themselves() -> None:
    """Only the pending output, and the pending gradient of the image, are reduced where they are used."""
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3))
    x = torch.randn(2, 4, 6, 6, requires_grad=True)
    traced = sl.trace(model, x, loss=lambda out: out.square().sum())
    params = {"0.weight": "o/tp ...", "0.bias": "o/tp", "2.weight": "o i/tp h w"}
    expansion = sl.expand(traced, sl.Mesh(tp=4), params=params)
    expansion.program.verify().raise_if_wrong()
    assert {each.kind for each in expansion.collectives} == {"all_reduce"}
    assert not [each.step for each in expansion.collectives if "convolution" in each.step]


def test_groups_that_no_shard_holds_whole_are_computed_everywhere() -> None:
    """Three groups of two channels on four ranks."""
    traced = sl.trace(torch.nn.Conv1d(6, 6, 2, groups=3), torch.randn(2, 6, 4), loss=lambda out: out.square().mean())
    expansion = sl.expand(traced, sl.Mesh(tp=4), params={"weight": "o/tp ...", "bias": "o/tp"}, unsupported="error")
    expansion.program.verify().raise_if_wrong()
