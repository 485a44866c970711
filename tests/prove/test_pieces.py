"""Cutting and assembling are inverse for every layout, and pending pieces reduce to the whole."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.distributed.tensor import Partial

from spmd_lab import Layout, Mesh
from spmd_lab.prove.pieces import assemble, cut, replicas, same_values
from spmd_lab.prove.shares import local_values, split_pending
from tests.base.strategies import layouts

KINDS = ("sum", "avg", "max", "min", "product")


def filled(layout: Layout, dtype: torch.dtype) -> torch.Tensor:
    count = torch.Size(layout.global_shape).numel()
    return (torch.arange(count) % 251 - 100).reshape(layout.global_shape).to(dtype)


@given(layouts())
def test_what_is_cut_by_a_layout_is_put_together_by_it(layout: Layout) -> None:
    assume(not layout.is_pending)
    whole = filled(layout, torch.int64)
    shards = [cut(whole, layout, rank) for rank in range(layout.mesh.size)]
    for copy in replicas(layout):
        assert torch.equal(assemble(layout, shards, copy).value, whole)


@given(layouts())
def test_every_rank_belongs_to_one_copy(layout: Layout) -> None:
    ranks = [rank for copy in replicas(layout) for members in copy for rank in members]
    assert sorted(ranks) == list(range(layout.mesh.size))


@given(layouts(), st.integers(0, 99))
def test_what_ranks_get_of_an_input_gives_the_input_back(layout: Layout, seed: int) -> None:
    assume(all(kind in ("sum", "max", "min") for kind in layout.pending.values()))
    assume(len(set(layout.pending.values())) <= 1)
    whole = filled(layout, torch.int64)
    (held,) = local_values([whole], [layout], seed)
    for copy in replicas(layout):
        assert torch.equal(assemble(layout, held, copy).value, whole)
    assert [tuple(each.shape) for each in held] == [layout.local_shape(rank) for rank in range(layout.mesh.size)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.bool])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [2, 3])
def test_pending_pieces_reduce_to_the_whole_and_are_uneven(kind: str, count: int, dtype: torch.dtype) -> None:
    if kind == "avg" and not dtype.is_floating_point:
        pytest.skip("no such average")
    whole = (torch.arange(60).reshape(6, 10) % 7 - 3).to(dtype)
    pieces = split_pending(whole, kind, count, torch.Generator().manual_seed(0))
    layout = Layout(whole.shape, dtype, Mesh(tp=count), [Partial(kind)])
    found = assemble(layout, pieces, replicas(layout)[0]).value
    allowed = 0.05 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(found, whole, rtol=allowed, atol=allowed)
    assert any(not torch.equal(pieces[0], piece) for piece in pieces[1:])
    assert not any(torch.equal(piece, whole) for piece in pieces)


def test_the_scale_of_a_sum_is_that_of_its_summands() -> None:
    layout = Layout.parse("f32[2]{sum: tp}", Mesh(tp=2))
    whole = assemble(layout, [torch.tensor([5.0, 1.0]), torch.tensor([-5.0, 1.0])], replicas(layout)[0])
    assert whole.value.tolist() == [0.0, 2.0]
    assert whole.scale is not None
    assert whole.scale.tolist() == [10.0, 2.0]


def test_reductions_of_two_kinds_are_carried_out_innermost_first() -> None:
    layout = Layout.parse("f32[1]{max: dp; sum: tp}", Mesh(dp=2, tp=2))
    pieces = [torch.tensor([value]) for value in (1.0, 5.0, 4.0, 3.0)]
    assert assemble(layout, pieces, replicas(layout)[0]).value.tolist() == [7.0]


def test_shards_have_memory_of_their_own_in_the_order_of_the_whole() -> None:
    whole = torch.arange(24.0).reshape(4, 6).t()
    shard = cut(whole, Layout.parse("f32[6/tp, 4]", Mesh(tp=2)), 1)
    assert shard.stride(0) < shard.stride(1)
    shard.zero_()
    assert whole.sum() == 276


def test_nan_equals_nan_only_in_the_same_place() -> None:
    nan = float("nan")
    assert same_values(torch.tensor([1.0, nan]), torch.tensor([1.0, nan]))
    assert not same_values(torch.tensor([1.0, nan]), torch.tensor([nan, 1.0]))
    assert not same_values(torch.tensor([1.0]), torch.tensor([1]))
