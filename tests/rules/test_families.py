"""Operators of many families, with their inputs laid out in every way, equal the single device; none is gathered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F

import spmd_lab as sl
from tests.rules.every_layout import check, moves

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

aten = torch.ops.aten


def rounded(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


def definite(*shape: int) -> torch.Tensor:
    root = torch.randn(shape)
    return (root @ root.mT + 3 * torch.eye(shape[-1])).requires_grad_()


def drawn_below(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape)


CASES: dict[str, tuple[Callable[..., object], list[Sequence[int]]]] = {
    "reflection_pad1d": (lambda x: F.pad(x, (1, 2), mode="reflect"), [(5, 3, 4)]),
    "reflection_pad2d": (lambda x: F.pad(x, (1, 2, 0, 1), mode="reflect"), [(1, 5, 3, 4)]),
    "reflection_pad3d": (lambda x: F.pad(x, (1, 1, 0, 1, 1, 0), mode="reflect"), [(5, 2, 2, 3, 2)]),
    "replication_pad1d": (lambda x: F.pad(x, (1, 2), mode="replicate"), [(5, 4)]),
    "replication_pad2d": (lambda x: F.pad(x, (1, 2, 0, 1), mode="replicate"), [(5, 1, 3, 4)]),
    "replication_pad3d": (lambda x: F.pad(x, (1, 2, 0, 1, 1, 0), mode="replicate"), [(5, 2, 1, 2, 2)]),
    "im2col": (lambda x: F.unfold(x, 2), [(5, 2, 3, 4)]),
    "col2im": (lambda x: F.fold(x, (3, 3), 2), [(5, 8, 4)]),
    "affine_grid": (lambda x: F.affine_grid(x, [5, 1, 2, 3]), [(5, 2, 3)]),
    "cdist": (torch.cdist, [(5, 3), (6, 3)]),
    "cdist of batches": (lambda x, y: torch.cdist(x, y, p=1.0), [(2, 5, 3), (1, 6, 3)]),
    "renorm": (lambda x: x.renorm(2, 0, 1.0), [(5, 3)]),
    "weight_norm": (lambda v, g: torch._weight_norm(v, g, 0), [(5, 3), (5, 1)]),
    "dist": (lambda x, y: torch.dist(x, y, 3.0), [(5, 3), (1, 3)]),
    "pairwise_distance": (F.pairwise_distance, [(5, 3), (5, 3)]),
    "addbmm": (lambda x, y, z: torch.addbmm(x, y, z, beta=2.0), [(5, 3), (2, 5, 4), (2, 4, 3)]),
    "baddbmm": (lambda x, y, z: torch.baddbmm(x, y, z, alpha=2.0), [(5, 1, 3), (5, 2, 4), (5, 4, 3)]),
    "addmv": (torch.addmv, [(5,), (5, 6), (6,)]),
    "addr": (torch.addr, [(5, 6), (5,), (6,)]),
    "mv": (torch.mv, [(5, 6), (6,)]),
    "vdot": (torch.vdot, [(5,), (5,)]),
    "bilinear": (F.bilinear, [(5, 3), (5, 4), (6, 3, 4)]),
    "triu": (lambda x: x.triu(1), [(2, 5, 6)]),
    "tril": (lambda x: x.tril(-1), [(6, 5)]),
    "trace": (torch.trace, [(5, 6)]),
    "diag_embed": (lambda x: x.diag_embed(1, 0, 2), [(5, 3)]),
    "diagonal_copy": (lambda x: torch.diagonal_copy(x, 1, 0, 2), [(3, 5, 4)]),
    "unfold_copy": (lambda x: torch.unfold_copy(x, 1, 2, 1), [(5, 3, 2)]),
}


@pytest.mark.parametrize("name", CASES)
def test_every_layout(name: str) -> None:
    fn, shapes = CASES[name]
    check(fn, *(rounded(*shape) for shape in shapes), fallback=False)


MATRICES: dict[str, Callable[..., object]] = {
    "cholesky": torch.linalg.cholesky,
    "qr": lambda x: torch.linalg.qr(x)[0],
    "svd": torch.linalg.svdvals,
    "eigh": torch.linalg.eigvalsh,
    "lu": lambda x: torch.linalg.lu(x)[2],
    "pinv": torch.linalg.pinv,
    "inv": torch.linalg.inv,
}


@pytest.mark.parametrize("name", MATRICES)
def test_matrices_in_every_layout(name: str) -> None:
    check(MATRICES[name], definite(5, 3, 3), fallback=False, most=6)


@pytest.mark.parametrize("name", MATRICES)
def test_a_divided_batch_of_matrices_stays_where_it_is(name: str) -> None:
    assert moves(MATRICES[name], definite(5, 2, 2), inputs=["n/x ..."], mesh=sl.Mesh(x=4)) == []


@pytest.mark.parametrize(
    ("fn", "shapes", "inputs"),
    [
        (torch.cdist, [(5, 3), (6, 3)], ["n/x c", "m/y c"]),
        (torch.trace, [(5, 6)], ["n/x m/y"]),
        (lambda x: x.tril(), [(5, 6)], ["n/x m/y"]),
        (torch.addmv, [(5,), (5, 6), (6,)], ["n/x", "n/x m/y", "m/y"]),
        (torch.addbmm, [(5, 3), (2, 5, 4), (2, 4, 3)], ["n/x m", "b/y n/x k", "b/y k m"]),
        (lambda x: F.pad(x, (1, 1), mode="reflect"), [(5, 6, 3)], ["n/x c/y d"]),
    ],
)
def test_what_is_divided_stays_divided(
    fn: Callable[..., object], shapes: list[tuple[int, ...]], inputs: list[str]
) -> None:
    assert moves(fn, *(rounded(*shape) for shape in shapes), inputs=inputs, mesh=sl.Mesh(x=2, y=2)) == []
