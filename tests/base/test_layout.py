"""The layout: what each rank holds, held to torch and to the tensor itself."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from spmd_lab import Layout, Mesh
from spmd_lab.errors import LayoutError, MeshError
from spmd_lab.layout import replicated
from tests.base.strategies import layouts

MESH = Mesh(dp=2, tp=4)
F32 = torch.float32


def numbered(layout: Layout) -> torch.Tensor:
    return torch.arange(math.prod(layout.global_shape)).reshape(layout.global_shape)


def torch_shard(layout: Layout, rank: int) -> torch.Tensor:
    """The shard of a rank as torch splits it, axis by axis."""
    shard = numbered(layout)
    for index, size, placement in zip(layout.mesh.coordinate(rank), layout.mesh.shape, layout.placements, strict=True):
        if isinstance(placement, (Shard, _StridedShard)):
            shard = placement._split_tensor(shard, size, with_padding=False)[0][index]
    return shard


# --- what ranks hold ----------------------------------------------------------------------------


@given(layouts())
def test_slices_are_the_shards_of_torch(layout: Layout) -> None:
    whole = numbered(layout)
    for rank in range(layout.mesh.size):
        shard = whole[layout.slices(rank)]
        assert torch.equal(shard, torch_shard(layout, rank))
        assert layout.local_shape(rank) == tuple(shard.shape)
        assert layout.local_shape_at(layout.mesh.coordinate(rank)) == tuple(shard.shape)


@given(layouts())
def test_all_ranks_together_hold_everything_once_a_replica(layout: Layout) -> None:
    counts = torch.zeros(layout.global_shape, dtype=torch.int64)
    for rank in range(layout.mesh.size):
        counts[layout.slices(rank)] += 1
    dividing = [isinstance(placement, (Shard, _StridedShard)) for placement in layout.placements]
    replicas = torch.tensor([1 if d else size for d, size in zip(dividing, layout.mesh.shape, strict=True)]).prod()
    assert (counts == replicas).all()


@given(layouts())
def test_slices_write_what_they_read(layout: Layout) -> None:
    whole, copy = numbered(layout), torch.full(layout.global_shape, -1)
    for rank in range(layout.mesh.size):
        copy[layout.slices(rank)] = whole[layout.slices(rank)]
    assert torch.equal(copy, whole)


@given(layouts())
def test_the_largest_shard_is_the_largest(layout: Layout) -> None:
    shapes = [layout.local_shape(rank) for rank in range(layout.mesh.size)]
    assert layout.largest_local_shape in shapes
    for dim, sizes in enumerate(zip(*shapes, strict=True)):
        assert layout.largest_local_shape[dim] == max(sizes)


def test_the_largest_shard_need_not_be_that_of_rank_0() -> None:
    layout = Layout((7,), F32, Mesh(dp=2, tp=2), [Shard(0), _StridedShard(0, split_factor=3)])
    assert [layout.local_shape(rank) for rank in range(4)] == [(2,), (2,), (3,), (0,)]
    assert layout.largest_local_shape == (3,)


@given(layouts())
def test_uneven_axes_are_those_along_which_shapes_differ(layout: Layout) -> None:
    mesh = layout.mesh
    differing = {
        axis
        for axis in mesh.axes
        for rank in range(mesh.size)
        if len({layout.local_shape(other) for other in mesh.group(rank, axis)}) > 1
    }
    assert layout.uneven_axes == differing


def test_uneven_axes_by_hand() -> None:
    assert Layout.parse("f32[8/dp/tp, 4]", MESH).uneven_axes == frozenset()
    assert Layout.parse("f32[5/dp, 4/tp]", MESH).uneven_axes == {"dp"}
    assert Layout.parse("f32[4/dp/tp]", MESH).uneven_axes == {"tp"}
    assert Layout.parse("f32[5/dp/tp]", MESH).uneven_axes == {"dp", "tp"}
    assert Layout.parse("f32[5, 3]{sum: dp, tp}", MESH).uneven_axes == frozenset()


def test_slices_are_plain_where_they_can_be() -> None:
    assert Layout.parse("f32[16/dp/tp, 3]", MESH).slices(5) == (slice(10, 12), slice(0, 3))
    assert Layout.parse("f32[16/tp/dp, 3]", MESH).slices(5) == (slice(6, 8), slice(0, 3))
    assert Layout.parse("f32[]", MESH).slices(5) == ()
    assert Layout.parse("f32[5/tp]", MESH).slices(3) == (slice(0, 0),)


def test_slices_are_an_open_mesh_where_elements_are_scattered() -> None:
    rows, columns = Layout.parse("f32[(4 4/tp), 6/dp]", MESH).slices(6)
    assert rows.tolist() == [[2], [6], [10], [14]]
    assert columns.tolist() == [[3, 4, 5]]


def test_a_layout_of_a_large_mesh_is_cheap() -> None:
    layout = Layout((100_000, 8), F32, Mesh(dp=8192), [Shard(0)])
    assert layout.local_shape(8191) == (0, 8)
    assert layout.largest_local_shape == (13, 8)
    assert layout.with_local_sizes() == (
        "f32[100000/dp, 8] ▸ [13, 8] [13, 8] [13, 8] [13, 8] [13, 8] [13, 8] ... [0, 8]"
    )


# --- a layout as a value ------------------------------------------------------------------------


@given(layouts())
def test_equal_layouts_are_equal_and_hash_alike(layout: Layout) -> None:
    again = Layout(list(layout.global_shape), layout.dtype, layout.mesh, list(layout.placements))
    assert again == layout
    assert hash(again) == hash(layout)


def test_different_layouts_differ() -> None:
    texts = ["f32[8, 8]", "i64[8, 8]", "f32[8, 4]", "f32[8/dp, 8]", "f32[8/tp, 8]", "f32[8, 8/dp]", "f32[8/dp/tp, 8]"]
    texts += ["f32[8/tp/dp, 8]", "f32[8, 8]{sum: dp}", "f32[8, 8]{avg: dp}", "f32[8, 8]{sum: tp}", "f32[(2 4/tp), 8]"]
    assert len({Layout.parse(text, MESH) for text in texts}) == len(texts)
    assert Layout.parse("f32[8]", MESH) != Layout.parse("f32[8]", Mesh(dp=2, tp=2))


def test_a_layout_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Layout.parse("f32[8]", MESH).dtype = torch.int64


def test_equal_placements_have_one_form() -> None:
    """Dims count from the front, and a stride of one is none."""
    plain = Layout((8, 4), F32, MESH, [Shard(0), Shard(1)])
    assert Layout((8, 4), F32, MESH, [Shard(-2), _StridedShard(-1, split_factor=1)]) == plain
    assert plain.placements == (Shard(0), Shard(1))
    strided = Layout((8, 4), F32, MESH, [_StridedShard(-1, split_factor=2), Replicate()])
    assert strided.placements == (_StridedShard(1, split_factor=2), Replicate())


def test_pending_and_replicated() -> None:
    layout = Layout((8,), F32, Mesh(dp=2, tp=4, cp=2), [Partial(), Shard(0), Partial("max")])
    assert layout.pending == {"dp": "sum", "cp": "max"}
    assert layout.is_pending
    assert not layout.is_replicated
    whole = replicated((8,), F32, MESH)
    assert whole == Layout((8,), F32, MESH, [Replicate(), Replicate()])
    assert whole.is_replicated
    assert not whole.is_pending
    assert layout.with_placements([Replicate()] * 3).is_replicated


def test_bytes() -> None:
    assert Layout.parse("bf16[8/dp, 4]", MESH).nbytes((4, 4)) == 32
    assert Layout.parse("i64[]", MESH).nbytes(()) == 8


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: Layout((8,), F32, MESH, [Shard(0)]),
            (
                "1 placements for the 2 axes of Mesh(dp=2, tp=4)\n"
                "  argument: [Shard(dim=0)]\n"
                "  try: one placement per mesh axis, outermost first: dp: Replicate(), tp: Replicate()"
            ),
        ),
        (
            lambda: Layout((8, 4), F32, Mesh(dp=2), [Shard(2)]),
            "S(2) divides a dim that a tensor of shape (8, 4) lacks\n  argument: S(2)\n  try: dims run from 0 to 1",
        ),
        (
            lambda: Layout((8, 4), F32, Mesh(dp=2), [_StridedShard(-3, split_factor=2)]),
            (
                "_S(-3, 2) divides a dim that a tensor of shape (8, 4) lacks\n"
                "  argument: _S(-3, 2)\n"
                "  try: dims run from 0 to 1"
            ),
        ),
        (
            lambda: Layout((), F32, Mesh(dp=2), [Shard(0)]),
            (
                "S(0) divides a dim that a tensor of shape () lacks\n"
                "  argument: S(0)\n"
                "  try: a 0-d tensor can only be Replicate or Partial"
            ),
        ),
        (
            lambda: Layout((8,), F32, Mesh(dp=2), ["S(0)"]),
            (
                "'S(0)' is no placement\n"
                "  argument: 'S(0)'\n"
                "  try: Shard(0), Replicate() or Partial(); Layout.parse reads text"
            ),
        ),
    ],
)
def test_the_text_of_each_error(make: object, text: str) -> None:
    with pytest.raises(LayoutError) as caught:
        make()
    assert str(caught.value) == text


def test_a_rank_that_is_not_there() -> None:
    layout = Layout.parse("f32[8/dp]", MESH)
    for ask in (layout.local_shape, layout.slices):
        with pytest.raises(MeshError, match="has no rank 8"):
            ask(8)
