"""The element map, held to torch's own way of splitting."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import Shard
from torch.distributed.tensor.placement_types import _StridedShard

from spmd_lab.elements import (
    Split,
    chunk_bounds,
    chunk_size,
    held_lengths,
    held_runs,
    order_factor,
    piece_lengths,
    runs_length,
    split_order,
)

SIZES = st.integers(0, 40)
PIECES = st.integers(1, 9)


def torch_pieces(whole: torch.Tensor, split: Split) -> list[torch.Tensor]:
    """How torch divides a vector."""
    placement = Shard(0) if split.split_factor == 1 else _StridedShard(0, split_factor=split.split_factor)
    pieces, _ = placement._split_tensor(whole, split.axis_size, with_padding=False)
    return pieces


def elements(runs: tuple[tuple[int, int], ...]) -> list[int]:
    return [index for start, stop in runs for index in range(start, stop)]


@st.composite
def divisions(draw: st.DrawFn, max_splits: int = 3) -> tuple[Split, ...]:
    count = draw(st.integers(0, max_splits))
    return tuple(Split(f"a{i}", draw(st.integers(1, 4)), draw(st.integers(1, 6))) for i in range(count))


@given(SIZES, PIECES)
def test_chunks_are_those_of_torch(size: int, pieces: int) -> None:
    expected = [piece.tolist() for piece in torch_pieces(torch.arange(size), Split("a", pieces))]
    assert [list(range(*chunk_bounds(size, pieces, index))) for index in range(pieces)] == expected
    assert chunk_size(size, pieces) == max(map(len, expected))


@given(SIZES, divisions())
def test_held_elements_are_those_of_torch(size: int, splits: tuple[Split, ...]) -> None:
    for indices in itertools.product(*(range(split.axis_size) for split in splits)):
        expected = torch.arange(size)
        for split, index in zip(splits, indices, strict=True):
            expected = torch_pieces(expected, split)[index]
        runs = held_runs(size, splits, indices)
        assert elements(runs) == expected.tolist()
        assert runs_length(runs) == len(expected)


@given(SIZES, divisions())
def test_runs_are_as_few_as_can_be(size: int, splits: tuple[Split, ...]) -> None:
    for indices in itertools.product(*(range(split.axis_size) for split in splits)):
        runs = held_runs(size, splits, indices)
        assert all(start < stop for start, stop in runs)
        assert all(one[1] != other[0] for one, other in itertools.pairwise(runs))


@given(SIZES, divisions())
def test_held_lengths_are_all_that_occur(size: int, splits: tuple[Split, ...]) -> None:
    for count, lengths in enumerate(held_lengths(size, splits)):
        ranks = itertools.product(*(range(split.axis_size) for split in splits[:count]))
        assert lengths == {runs_length(held_runs(size, splits[:count], indices)) for indices in ranks}


@given(SIZES, PIECES, PIECES)
def test_piece_lengths_are_all_that_occur(size: int, pieces: int, split_factor: int) -> None:
    split = Split("a", pieces, split_factor)
    assert piece_lengths(size, split) == {len(piece) for piece in torch_pieces(torch.arange(size), split)}


@given(st.permutations(["a0", "a1", "a2"]), st.lists(st.integers(1, 4), min_size=3, max_size=3), st.integers(0, 3))
def test_an_order_of_axes_divides_in_that_order(order: list[str], sizes: list[int], factor: int) -> None:
    """Even sizes: the split factors of an order give what dividing in that order gives."""
    on_mesh = tuple(Split(f"a{i}", size) for i, size in enumerate(sizes))
    outer_first = [on_mesh[int(axis[1])] for axis in order]
    splits = tuple(split._replace(split_factor=order_factor(split, outer_first, on_mesh)) for split in on_mesh)
    size = factor * sizes[0] * sizes[1] * sizes[2]
    for indices in itertools.product(*map(range, sizes)):
        expected = torch.arange(size)
        for split in outer_first:
            expected = torch_pieces(expected, split)[indices[int(split.axis[1])]]
        assert elements(held_runs(size, splits, indices)) == expected.tolist()


@given(st.permutations(["a0", "a1", "a2"]), st.lists(st.integers(2, 4), min_size=3, max_size=3))
def test_an_order_is_found_again(order: list[str], sizes: list[int]) -> None:
    on_mesh = tuple(Split(f"a{i}", size) for i, size in enumerate(sizes))
    outer_first = [on_mesh[int(axis[1])] for axis in order]
    splits = tuple(split._replace(split_factor=order_factor(split, outer_first, on_mesh)) for split in on_mesh)
    assert split_order(splits) == tuple(order)


@pytest.mark.parametrize("splits", [(Split("tp", 4, 3),), (Split("dp", 2, 3), Split("tp", 4))])
def test_some_factors_stand_for_no_order(splits: tuple[Split, ...]) -> None:
    assert split_order(splits) is None


def test_uneven_by_hand() -> None:
    """Five over four, then the other order of two by two; torch keeps blocks together first."""
    assert [held_runs(5, (Split("dp", 4),), (index,)) for index in range(4)] == [((0, 2),), ((2, 4),), ((4, 5),), ()]
    tp_first = (Split("dp", 2, 2), Split("tp", 2))
    held = {indices: elements(held_runs(7, tp_first, indices)) for indices in itertools.product(range(2), range(2))}
    assert held == {(0, 0): [0, 1], (0, 1): [4, 5], (1, 0): [2, 3], (1, 1): [6]}


def test_one_index_a_split() -> None:
    with pytest.raises(ValueError, match="zip"):
        held_runs(4, (Split("dp", 2),), ())
