"""Pools and changes of resolution, divided in every way that their rules offer, equal the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from spmd_lab.rules import pooling
from tests.rules.every_way import run_every_way

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten
IMAGES, LONE, VOLUMES, SOUNDS = (5, 3, 4, 4), (6, 4, 4), (3, 2, 4, 4, 4), (3, 2, 6)
"""Uneven on four ranks; ``LONE`` is an image without a batch."""

UNARY: dict[str, tuple[Callable[..., object], tuple[int, ...]]] = {
    "max_pool2d": (lambda x: aten.max_pool2d_with_indices(x, [2, 2]), IMAGES),
    "max_pool2d_lone": (lambda x: aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1]), LONE),
    "max_pool3d": (lambda x: aten.max_pool3d_with_indices(x, [2, 2, 2]), VOLUMES),
    "avg_pool2d": (lambda x: aten.avg_pool2d(x, [2, 2], [1, 1], [1, 1], True, False), IMAGES),
    "avg_pool3d": (lambda x: aten.avg_pool3d(x, [2, 2, 2]), VOLUMES),
    "adaptive_avg_pool2d": (lambda x: aten._adaptive_avg_pool2d(x, [3, 2]), IMAGES),
    "adaptive_avg_pool3d": (lambda x: aten._adaptive_avg_pool3d(x, [3, 2, 1]), VOLUMES),
    "adaptive_max_pool2d": (lambda x: aten.adaptive_max_pool2d(x, [3, 2]), IMAGES),
    "adaptive_max_pool3d": (lambda x: aten.adaptive_max_pool3d(x, [3, 2, 1]), VOLUMES),
    "linear": (lambda x: aten.upsample_linear1d(x, [9], False), SOUNDS),
    "trilinear": (lambda x: aten.upsample_trilinear3d(x, [5, 6, 7], False), VOLUMES),
    "nearest1d_backward": (lambda g: aten.upsample_nearest1d_backward(g, [6], [3, 2, 3]), SOUNDS),
    "nearest2d_backward": (lambda g: aten.upsample_nearest2d_backward(g, [4, 4], [5, 3, 2, 3]), IMAGES),
    "nearest3d_backward": (lambda g: aten.upsample_nearest3d_backward(g, [4, 4, 4], [3, 2, 2, 2, 3]), VOLUMES),
    "nearest_exact2d_backward": (
        lambda g: aten._upsample_nearest_exact2d_backward(g, [4, 4], [5, 3, 2, 3]), IMAGES,
    ),
    "linear_backward": (lambda g: aten.upsample_linear1d_backward(g, [6], [3, 2, 3], False), SOUNDS),
    "bilinear_backward": (lambda g: aten.upsample_bilinear2d_backward(g, [4, 4], [5, 3, 2, 3], True), IMAGES),
    "bicubic_backward": (lambda g: aten.upsample_bicubic2d_backward(g, [4, 4], [5, 3, 2, 3], False), IMAGES),
    "trilinear_backward": (
        lambda g: aten.upsample_trilinear3d_backward(g, [4, 4, 4], [3, 2, 2, 2, 3], False), VOLUMES,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_every_way(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    op, shape = UNARY[name]
    assert run_every_way(monkeypatch, pooling, op, [torch.randn(shape)])


@pytest.mark.parametrize("shape", [IMAGES, LONE])
def test_every_way_of_the_backward_of_a_maximum(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    out, where = aten.max_pool2d_with_indices(x, [2, 2])
    rest = ([2, 2], [2, 2], [0, 0], [1, 1], False)

    def backward(grad: torch.Tensor, x: torch.Tensor, where: torch.Tensor) -> object:
        return aten.max_pool2d_with_indices_backward(grad, x, *rest, where)

    assert run_every_way(monkeypatch, pooling, backward, [torch.randn_like(out), x, where])
    assert run_every_way(monkeypatch, pooling, lambda y, i: aten.max_unpool2d(y, i, [4, 4]), [out, where])
    out, where = aten.adaptive_max_pool2d(x, [3, 2])
    tensors = [torch.randn_like(out), x, where]
    assert run_every_way(monkeypatch, pooling, aten.adaptive_max_pool2d_backward.default, tensors)


@pytest.mark.parametrize("ndim", [2, 3])
def test_every_way_of_the_backward_of_a_mean(monkeypatch: pytest.MonkeyPatch, ndim: int) -> None:
    x, size = torch.randn(IMAGES if ndim == 2 else VOLUMES), [2] * ndim
    backward = getattr(aten, f"avg_pool{ndim}d_backward")
    grad = torch.randn_like(getattr(aten, f"avg_pool{ndim}d")(x, size))
    rest = (size, size, [0] * ndim, False, True, None)
    assert run_every_way(monkeypatch, pooling, lambda g, x: backward(g, x, *rest), [grad, x])
    adaptive = getattr(aten, f"_adaptive_avg_pool{ndim}d_backward").default
    assert run_every_way(monkeypatch, pooling, adaptive, [torch.randn(*x.shape[:2], *size), x])


@pytest.mark.parametrize("ndim", [2, 3])
def test_every_way_of_sampling_a_grid(monkeypatch: pytest.MonkeyPatch, ndim: int) -> None:
    x = torch.randn(IMAGES if ndim == 2 else VOLUMES)
    grid = torch.rand(x.shape[0], *[2] * ndim, ndim) * 2 - 1
    forward, backward = getattr(aten, f"grid_sampler_{ndim}d"), getattr(aten, f"grid_sampler_{ndim}d_backward")
    assert run_every_way(monkeypatch, pooling, lambda x, grid: forward(x, grid, 0, 0, False), [x, grid])
    grad = torch.randn_like(forward(x, grid, 0, 0, False))
    run = lambda grad, x, grid: backward(grad, x, grid, 0, 0, False, [True, True])  # noqa: E731
    assert run_every_way(monkeypatch, pooling, run, [grad, x, grid])
