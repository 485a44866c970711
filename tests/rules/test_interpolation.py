"""Reading and adding at known positions, divided in every way that the rules offer, equals the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F

import spmd_lab as sl
from spmd_lab.rules import interpolation
from tests.rules.every_way import run_every_way

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten

PATTERNS: dict[str, tuple[int | None, ...]] = {
    "as_images_are": (None, None, 2, 1),
    "together": (None, 1, 1),
    "apart": (1, None, 1),
    "one": (None, 2),
    "first": (1,),
}


def at(pattern: tuple[int | None, ...]) -> Callable[..., list[torch.Tensor | None]]:
    """Put given indices in the places of a pattern."""
    return lambda indices: [None if each is None else indices.pop(0) for each in pattern]


@pytest.mark.parametrize("name", PATTERNS)
def test_every_way(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    pattern = PATTERNS[name]
    x = torch.randn(5, 3, 4, 6)
    indices = [
        torch.randint(x.shape[dim], (3, 1) if ndim == 2 else (2,)) for dim, ndim in enumerate(pattern) if ndim
    ]  # fmt: skip
    place = at(pattern)
    read = lambda x, *at: aten._unsafe_index.Tensor(x, place(list(at)))  # noqa: E731
    assert run_every_way(monkeypatch, interpolation, read, [x, *indices])
    values = torch.randn_like(read(x, *indices))

    def add(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return aten._unsafe_index_put(x, place(list(rest[:-1])), rest[-1], True)

    assert run_every_way(monkeypatch, interpolation, add, [x, *indices, values])
    assert run_every_way(monkeypatch, interpolation, add, [x, *indices, values[..., :1, :, :1].clone()])


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic", "area"])
def test_an_image_that_is_divided_is_enlarged_without_moving_it(mode: str) -> None:
    traced = sl.trace(lambda x: F.interpolate(x, (7, 5), mode=mode), torch.randn(5, 6, 3, 4, requires_grad=True))
    expansion = sl.expand(
        traced, sl.Mesh(dp=2, tp=4), inputs=["n/dp c/tp h w"], outputs={"out": "n/dp c/tp h w"}, unsupported="error"
    )
    expansion.program.verify().raise_if_wrong()
    assert len(expansion.collectives) == 0
