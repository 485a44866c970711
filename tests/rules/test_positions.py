"""Reading and writing at positions, divided in every way that the rules offer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import spmd_lab as sl
from spmd_lab.rules import positions
from tests.rules.every_way import run_every_way

if TYPE_CHECKING:
    from collections.abc import Callable


def test_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    for rows in (5, 3):
        index = torch.randint(4, (rows, 6))
        assert run_every_way(monkeypatch, positions, lambda x, i: x.gather(1, i), [torch.randn(5, 4), index])


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(monkeypatch: pytest.MonkeyPatch, reduce: str) -> None:
    x, index, source = torch.randn(5, 4), torch.randint(4, (5, 6)), torch.randn(5, 6)
    program = lambda x, i, s: x.scatter_reduce(1, i, s, reduce)  # noqa: E731
    assert run_every_way(monkeypatch, positions, program, [x, index, source])


PENDING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nansum": lambda x: torch.where(x > 0, x, torch.nan).nansum(0),
    "nansum of what is pending": lambda x: x.nansum(),
    "a comparison of sums": lambda x: x == x.clone(),
}


@pytest.mark.parametrize("name", PENDING)
def test_a_pending_sum_is_resolved_where_pieces_may_have_what_the_sum_has_not(name: str) -> None:
    x = torch.randn(4, 3)
    x[1] = torch.nan
    sl.spmd_expand(PENDING[name], x, mesh=sl.Mesh(x=4), inputs=["a b{sum: x}"]).program.verify().raise_if_wrong()


def test_a_dim_of_one_row_is_not_taken_for_one_of_size_one() -> None:
    """Of five rows, the third rank has one: what squeezes its shard drops a dim that the tensor has."""
    x = torch.randn(5, 1, 5, 1, requires_grad=True)
    sl.spmd_expand(torch.ops.aten.squeeze_copy, x, mesh=sl.Mesh(x=4), batch="x").program.verify().raise_if_wrong()
