"""Writing by masks and at positions, and covariances: traced with their gradients, since all shapes are known."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest
import torch
from torch.distributed.tensor import Partial, Shard

import spmd_lab as sl
from spmd_lab import trace
from spmd_lab.errors import TraceError
from tests.trace.programs import check

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = torch.tensor([True, False, True, True, False])
CELLS = (torch.arange(15) % 2 == 1).view(5, 3)


def setting(index: object, value: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A program that sets some of what it is given to something that has a gradient."""

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[index] = value(x)
        return y * y

    return program


WRITTEN: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "rows to a number": (setting(ROWS, torch.sum), (5, 3)),
    "rows to a row": (setting(ROWS, lambda x: x.sum(0)), (5, 3)),
    "rows to the only row of a matrix": (setting(ROWS, lambda x: x.sum(0, keepdim=True)), (5, 3)),
    "cells": (setting(CELLS, torch.mean), (5, 3)),
    "cells of a part": (setting((slice(None), slice(1, None), CELLS[:, 0]), torch.mean), (2, 4, 5)),
    "by the last dims": (setting((..., CELLS), lambda x: x.sum((1, 2))[:, None]), (2, 5, 3)),
    "in one column": (setting((ROWS, 1), torch.sum), (5, 3)),
    "before a new dim": (setting((0, ROWS, None), torch.sum), (2, 5, 3)),
    "rounded": (setting(ROWS, lambda x: x.sum().double()), (5, 3)),
    "put": (lambda x: x.index_put((ROWS,), x.sum(0)), (5, 3)),
    "added": (lambda x: x.index_put((ROWS,), x.sum(0), accumulate=True), (5, 3)),
    "put in place": (lambda x: (x * 2).index_put_((CELLS,), x.sum()), (5, 3)),
    "filled": (lambda x: x.index_fill(-1, torch.tensor([0, 2, 2]), x.sum()), (5, 3)),
    "filled in place": (lambda x: (x * 2).index_fill_(0, torch.tensor([1]), x.sum()), (5, 3)),
    "a number filled": (lambda x: x.sum().index_fill(0, torch.tensor([0]), x.mean()), (5, 3)),
}
MATRICES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "covariance": torch.cov,
    "of one row": lambda x: x[0].cov(),
    "of the population": lambda x: torch.cov(x, correction=0),
    "with counts": lambda x: torch.cov(x, fweights=torch.tensor([1, 2, 3, 1])),
    "with weights": lambda x: torch.cov(x, aweights=torch.tensor([0.1, 2.0, 3.0, 1.0])),
    "with both": lambda x: torch.cov(x, fweights=torch.tensor([1, 2, 3, 1]), aweights=x[0].abs()),
    "of complex numbers": lambda x: torch.view_as_real(torch.cov(torch.complex(x, x.flip(0)))),
    "correlation": torch.corrcoef,
    "correlation of one row": lambda x: x[0].corrcoef(),
    "correlation of complex numbers": lambda x: torch.complex(x, x.flip(0)).corrcoef().abs(),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_has_its_gradient(name: str) -> None:
    fn, shape = WRITTEN[name]
    check(trace(fn, torch.randn(shape, requires_grad=True)))


@pytest.mark.parametrize("name", MATRICES)
def test_a_covariance(name: str) -> None:
    check(trace(MATRICES[name], torch.randn(3, 4, requires_grad=True)))


def test_a_covariance_of_too_few_is_infinite_as_in_torch() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(trace(lambda x: torch.cov(x, correction=4), torch.randn(3, 4)))


@pytest.mark.parametrize("name", ["rows to a row", "cells", "added", "filled"])
def test_ranks_write_into_their_shards(name: str) -> None:
    fn, shape = WRITTEN[name]
    traced = trace(fn, torch.randn(shape, requires_grad=True))
    for placement in (Shard(0), Shard(1), Partial()):
        expansion = sl.expand(traced, sl.Mesh(x=4), inputs={"x": [placement]}, unsupported="error")
        expansion.program.verify().raise_if_wrong()


def test_as_many_values_as_a_mask_selects_depend_on_data() -> None:
    with pytest.raises(TraceError, match="depends on data"):
        trace(lambda x: x.index_put((ROWS,), x[:3].exp()), torch.randn(5, 3, requires_grad=True))
