"""Each simulated collective does what its definition says, element by element."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx

from spmd_lab import collectives
from spmd_lab.errors import VerificationError
from spmd_lab.prove import collectives as judged
from spmd_lab.prove.collectives import Request, combine, is_collective, perform, request_of

c10d = torch.ops._c10d_functional
PYTHON = {"sum": sum, "max": max, "min": min, "product": math.prod}
sizes = st.integers(1, 4)


def pieces_of(group: int, *shape: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(-5, 6, shape, generator=generator) for _ in range(group)]


def run(request: Request, pieces: list[torch.Tensor]) -> list[torch.Tensor]:
    return perform(request, pieces, [request] * len(pieces))


@given(group=sizes, rows=sizes, columns=sizes, reduce_op=st.sampled_from(sorted(PYTHON)), seed=st.integers(0, 99))
def test_all_reduce_reduces_every_element_over_the_group(
    group: int, rows: int, columns: int, reduce_op: str, seed: int
) -> None:
    pieces = pieces_of(group, rows, columns, seed=seed)
    results = run(Request("all_reduce", "tp", reduce_op), pieces)
    for row in range(rows):
        for column in range(columns):
            wanted = PYTHON[reduce_op]([int(piece[row, column]) for piece in pieces])
            assert {int(result[row, column]) for result in results} == {wanted}
    assert len(results) == group


@given(group=sizes, rows=sizes, seed=st.integers(0, 99))
def test_all_gather_lays_the_pieces_along_dim_0_in_rank_order(group: int, rows: int, seed: int) -> None:
    pieces = pieces_of(group, rows, 2, seed=seed)
    for result in run(Request("all_gather", "tp", None, group), pieces):
        assert result.tolist() == [row for piece in pieces for row in piece.tolist()]


@given(group=sizes, rows=sizes, reduce_op=st.sampled_from(sorted(PYTHON)), seed=st.integers(0, 99))
def test_reduce_scatter_is_an_all_reduce_of_which_each_rank_keeps_its_part(
    group: int, rows: int, reduce_op: str, seed: int
) -> None:
    pieces = pieces_of(group, rows * group, 3, seed=seed)
    whole = run(Request("all_reduce", "tp", reduce_op), pieces)[0]
    for rank, part in enumerate(run(Request("reduce_scatter", "tp", reduce_op, group), pieces)):
        assert part.tolist() == whole.tolist()[rank * rows : (rank + 1) * rows]


@given(
    group=sizes,
    shape=st.tuples(sizes, sizes, sizes),
    dims=st.permutations([0, 1, 2]).map(lambda order: order[:2]),
    seed=st.integers(0, 99),
)
def test_an_exchange_of_shards_divides_another_dim(
    group: int, shape: tuple[int, ...], dims: list[int], seed: int
) -> None:
    gather_dim, shard_dim = dims
    whole_shape = [size * group if dim in dims else size for dim, size in enumerate(shape)]
    whole = pieces_of(1, *whole_shape, seed=seed)[0]
    before, after = whole.chunk(group, gather_dim), whole.chunk(group, shard_dim)
    request = Request("all_to_all", "tp", gather_dim=gather_dim, shard_dim=shard_dim)
    results = run(request, list(before))
    assert all(torch.equal(result, wanted) for result, wanted in zip(results, after, strict=True))


@given(
    counts=st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 3), min_size=n, max_size=n), min_size=n, max_size=n)
    )
)
def test_a_general_exchange_sends_rows_to_the_ranks_that_they_are_for(counts: list[list[int]]) -> None:
    group = len(counts)
    rows = [
        [(sender, receiver, row) for receiver in range(group) for row in range(counts[sender][receiver])]
        for sender in range(group)
    ]
    pieces = [torch.tensor(each).reshape(-1, 3) for each in rows]
    requests = [
        Request(
            "all_to_all",
            "tp",
            sent=tuple(counts[rank]),
            received=tuple(counts[sender][rank] for sender in range(group)),
        )
        for rank in range(group)
    ]
    for receiver, result in enumerate(perform(requests[0], pieces, requests)):
        wanted = [[sender, receiver, row] for sender in range(group) for row in range(counts[sender][receiver])]
        assert result.tolist() == wanted


def test_the_order_of_a_reduction_is_that_of_the_ranks() -> None:
    pieces = [torch.tensor(1e8), torch.tensor(-1e8), torch.tensor(1.0)]
    assert combine("sum", pieces).item() == 1.0
    assert combine("sum", pieces[::-1]).item() != 1.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64])
def test_an_average_keeps_the_dtype(dtype: torch.dtype) -> None:
    found = combine("avg", [torch.tensor([1.0, 2.0]).to(dtype), torch.tensor([2.0, 4.0]).to(dtype)])
    assert found.dtype == dtype
    assert found.tolist() == [1.5, 3.0]


@pytest.mark.parametrize(
    ("reduce_op", "wanted"),
    [
        ("sum", [False, True, True]),
        ("max", [False, True, True]),
        ("min", [False, False, True]),
        ("product", [False, False, True]),
    ],
)
def test_bools_are_joined_by_or_and_and(reduce_op: str, wanted: list[bool]) -> None:
    pieces = [torch.tensor([False, True, True]), torch.tensor([False, False, True])]
    assert combine(reduce_op, pieces).tolist() == wanted


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_an_average_of_what_cannot_be_divided_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(VerificationError, match="there is no 'avg' over ranks of"):
        combine("avg", [torch.ones(2).to(dtype)] * 2)


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(VerificationError, match="there is no 'premul_sum'"):
        combine("premul_sum", [torch.ones(2)] * 2)


def test_ranks_must_hand_in_equal_shapes() -> None:
    with pytest.raises(VerificationError, match=r"all_gather\(tp\) hand in different tensors: \[2\] .* \[3\]"):
        run(Request("all_gather", "tp", None, 2), [torch.ones(2), torch.ones(3)])


def test_what_is_scattered_must_divide() -> None:
    with pytest.raises(VerificationError, match=r"cuts dim 0 .* into 2 equal pieces") as caught:
        run(Request("reduce_scatter", "tp", "sum", 2), [torch.ones(3), torch.ones(3)])
    assert caught.value.hint == "pad that dim first"


def test_a_tensor_without_dims_cannot_be_gathered() -> None:
    with pytest.raises(VerificationError, match="works along dim 0 of a tensor of shape"):
        run(Request("all_gather", "tp", None, 2), [torch.tensor(1.0)] * 2)


def test_what_is_sent_must_be_what_is_expected() -> None:
    requests = [
        Request("all_to_all", "tp", sent=(1, 1), received=(1, 2)),
        Request("all_to_all", "tp", sent=(1, 1), received=(1, 1)),
    ]
    with pytest.raises(VerificationError, match="rank 1 of the group has 2 rows and sends"):
        perform(requests[0], [torch.ones(2)] * 2, requests)


def test_calls_are_read_by_the_names_of_their_schemas() -> None:
    tensor, request = request_of(
        c10d.reduce_scatter_tensor.default, ("x", "sum"), {"group_size": 4, "group_name": "tp"}
    )
    assert (tensor, request) == ("x", Request("reduce_scatter", "tp", "sum", 4))
    assert is_collective(torch.ops._dtensor.shard_dim_alltoall.default)
    assert not is_collective(c10d.wait_tensor.default)


ARGUMENTS = {
    c10d.all_reduce.default: ("sum",),
    c10d.all_gather_into_tensor.default: (4,),
    c10d.reduce_scatter_tensor.default: ("sum", 4),
    c10d.all_to_all_single.default: ([1, 1], [1, 1]),
    torch.ops._dtensor.shard_dim_alltoall.default: (0, 1),
}
"""What each collective is told between the tensor and the group."""


@pytest.mark.parametrize("op", ARGUMENTS, ids=str)
def test_the_judge_knows_the_collectives_that_programs_may_hold(op: object) -> None:
    """Each keeps a table of its own: the judge does not trust what it judges."""
    graph = fx.Graph()
    node = graph.call_function(op, (graph.placeholder("x"), *ARGUMENTS[op], "tp"))  # type: ignore[index,arg-type]
    _, request = request_of(op, node.args, {})
    assert (request.kind, request.axis) == (collectives.kind_of(node), collectives.axis_of(node))
    assert is_collective(op)


def test_the_two_tables_have_the_same_operators() -> None:
    assert set(collectives._COLLECTIVES) == set(judged._READERS) == set(ARGUMENTS)
