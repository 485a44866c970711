"""Reading and adding by tensors of positions, with these and all else laid out in every way, equals the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import spmd_lab as sl
from tests.rules.every_layout import check, moves

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten


def rounded(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


def below(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape)


CASES: dict[str, tuple[Callable[..., object], list[torch.Tensor]]] = {
    "index": (lambda x, i: x[i], [rounded(5, 3), below(5, 6)]),
    "index in the middle": (lambda x, i: x[:, i], [rounded(5, 6, 2), below(6, 5, 2)]),
    "index twice": (lambda x, i, j: x[i, :, j], [rounded(5, 2, 6), below(5, 5, 1), below(6, 1, 3)]),
    "index_put": (lambda x, i, v: x.index_put((i,), v), [rounded(6, 5), torch.randperm(6)[:5], rounded(5, 5)]),
    "index_put, added": (lambda x, i, v: x.index_put((i,), v, True), [rounded(3, 2), below(3, 5), rounded(5, 2)]),
    "index_put, one value": (lambda x, i, v: x.index_put((i,), v, True), [rounded(3, 2), below(3, 5), rounded()]),
    "index_put, masked": (lambda x, m, v: x.index_put((m,), v), [rounded(5, 3), torch.rand(5) > 0.5, torch.randn(())]),
    "index_select": (lambda x, i: x.index_select(1, i), [rounded(5, 6), below(6, 5)]),
    "index_add": (lambda x, i, s: x.index_add(0, i, s, alpha=2), [rounded(3, 2), below(3, 5), rounded(5, 2)]),
    "scatter_add": (lambda x, i, s: x.scatter_add(0, i, s), [rounded(3, 2), below(3, 5, 2), rounded(5, 2)]),
    "scatter_add, short": (lambda x, i, s: x.scatter_add(1, i, s), [rounded(5, 6), below(6, 3, 5), rounded(3, 5)]),
    "take": (lambda x, i: x.take(i), [rounded(5, 6), below(30, 5, 2)]),
    "put": (lambda x, i, s: x.put(i, s, accumulate=True), [rounded(5, 2), below(10, 5, 2), rounded(5, 2)]),
    "masked_index": (
        lambda x, m, i: aten._unsafe_masked_index(x, m, [i, None], 2.0),
        [torch.randn(5, 3), torch.rand(6, 1) > 0.5, below(5, 6)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_layout(name: str) -> None:
    fn, tensors = CASES[name]
    check(fn, *tensors, fallback=False, most=14)


@pytest.mark.parametrize("kind", ["avg", "max", "min", "product"])
def test_reading_lets_every_pending_reduction_pass(kind: str) -> None:
    pending = f"a b{{{kind}: x}}"
    for fn, i in ((lambda x, i: x[i], below(5, 6)), (lambda x, i: x.take(i), below(10, 3))):
        assert moves(fn, torch.randn(5, 2), i, inputs=[pending, None], mesh=sl.Mesh(x=4)) == []


@pytest.mark.parametrize(
    ("fn", "source"),
    [
        (lambda x, i, s: x.index_add(0, i, s), "n/x d"),
        (lambda x, i, s: x.index_put((i,), s, True), "n/x d"),
        (lambda x, i, s: x.scatter_add(0, i[:, None].expand(-1, 2), s), "n/x d"),
    ],
)
def test_adding_at_divided_positions_moves_nothing(fn: Callable[..., object], source: str) -> None:
    """As a mixture of experts puts its tokens together."""
    tensors = [torch.randn(3, 2), below(3, 5), torch.randn(5, 2)]
    assert moves(fn, *tensors, inputs=[None, "n/x", source], mesh=sl.Mesh(x=4)) == []


def test_a_number_is_added_once_by_all_ranks_together() -> None:
    for shape in ((), (1,)):
        program = lambda x, i, s: x.index_add(0, i, s)  # noqa: E731
        check(program, torch.randn(shape), torch.zeros(1, dtype=torch.int64), torch.randn(shape))


def test_a_number_is_read_whole_by_all_ranks() -> None:
    """Whatever divides the one position that there is."""
    for shape in ((), (1,)):
        check(lambda x, i: x.index_select(0, i), torch.randn(shape), torch.zeros(1, dtype=torch.int64))
