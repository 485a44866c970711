"""Pictures of layouts and redistributions: what is drawn is what the element map says."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Replicate

import spmd_lab as sl
from spmd_lab.errors import LayoutError
from spmd_lab.expand.redistribute import redistribution
from spmd_lab.records.grid_changes import change_record
from spmd_lab.records.grids import grid_record
from tests.base.strategies import layouts, ordered_layouts, placements

if TYPE_CHECKING:
    from spmd_lab.show.grid_records import CellRecord, GridRecord

MESH = sl.Mesh(dp=2, tp=4)


def elements(grid: GridRecord, cells: list[CellRecord], shape: tuple[int, ...]) -> set[int]:
    """The flat numbers of the elements that some cells cover, each at most once."""
    numbers = torch.arange(torch.Size(shape).numel()).reshape(shape)
    found: list[int] = []
    for cell in cells:
        where = [grid.dims[dim][position] for dim, position in enumerate(cell.segments)]
        found += numbers[tuple(slice(each.start, each.stop) for each in where)].flatten().tolist()
    assert len(found) == len(set(found))
    return set(found)


def held(layout: sl.Layout, rank: int) -> set[int]:
    numbers = torch.arange(torch.Size(layout.global_shape).numel()).reshape(layout.global_shape)
    return set(numbers[layout.slices(rank)].flatten().tolist())


ANY = layouts() | ordered_layouts() | layouts(min_dims=6, max_dims=6, longest=3, min_axes=4)


def kinds(layout: sl.Layout) -> set[str]:
    """What is hard about a layout."""
    dims = range(len(layout.global_shape))
    written = [found.strip("/").split("/") for found in re.findall(r"(?:/\w+)+", str(layout))]
    orders = [list(map(layout.mesh.axis_index, axes)) for axes in written]
    found = {
        "6 dims on 4 axes": (len(layout.global_shape), layout.mesh.ndim) == (6, 4),
        "empty": 0 in layout.global_shape,
        "uneven": bool(layout.uneven_axes),
        "pending on several axes": len(layout.pending) > 1,
        "in the order of the axes": any(len(order) > 1 and order == sorted(order) for order in orders),
        "in the other order": any(order != sorted(order) for order in orders),
        "not contiguous": any(len(layout.runs(dim, layout.mesh.coordinate(0))) > 1 for dim in dims),
    }
    return {kind for kind, is_so in found.items() if is_so}


def agree(grid: GridRecord, layout: sl.Layout) -> None:
    """Every cell is what its ranks hold, and what a rank holds is in its cells."""
    drawn = elements(grid, list(grid.cells), layout.global_shape)
    if not any(segment.hidden for dim in grid.dims for segment in dim):
        assert drawn == set(range(torch.Size(layout.global_shape).numel()))
    for rank in range(layout.mesh.size):
        where = dict(zip(layout.mesh.axes, layout.mesh.coordinate(rank), strict=True))
        cells = [cell for cell in grid.cells if all(where[p.axis.text] == p.index for p in cell.places)]
        assert elements(grid, cells, layout.global_shape) == held(layout, rank) & drawn
        assert all((rank in cell.ranks) == (cell in cells) for cell in grid.cells if cell.ranks)


def test_every_drawn_cell_is_what_its_ranks_hold() -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=250)
    @given(ANY)
    def check(layout: sl.Layout) -> None:
        seen.update(kinds(layout))
        agree(grid_record(layout), layout)

    check()
    assert len(seen) == 7
    assert min(seen.values()) >= 3


def test_a_wrong_picture_would_be_found() -> None:
    layout = sl.Layout.parse("f32[5/dp/tp, 6, 3]", MESH)
    grid = grid_record(layout)
    agree(grid, layout)
    first, second, *others = grid.cells
    swapped = (replace(first, places=second.places), replace(second, places=first.places), *others)
    moved = (replace(first, segments=second.segments), *grid.cells[1:])
    named = (replace(first, ranks=second.ranks), *grid.cells[1:])
    for wrong in (swapped, moved, named, grid.cells[1:]):
        with pytest.raises(AssertionError):
            agree(replace(grid, cells=wrong), layout)


def settled(layout: sl.Layout) -> sl.Layout:
    return layout.with_placements([Replicate() if isinstance(p, Partial) else p for p in layout.placements])


@settings(max_examples=100)
@given(ANY, st.data())
def test_what_arrives_is_what_a_rank_did_not_hold(have: sl.Layout, data: st.DataObject) -> None:
    targets = st.lists(placements(len(have.global_shape)), min_size=have.mesh.ndim, max_size=have.mesh.ndim)
    need = settled(have.with_placements(data.draw(targets)))
    change = redistribution(settled(have), need)
    if change is None:
        return
    rank = data.draw(st.integers(0, have.mesh.size - 1))
    record = change_record(change, rank)
    arriving = held(need, rank) - held(settled(have), rank)
    count = f"{len(arriving):,} of its {len(held(need, rank)):,} element" if arriving else "nothing"
    assert f"rank {rank} gets {count}" in record.alt
    after = record.after
    drawn = elements(after, list(after.cells), need.global_shape)
    own = elements(after, [cell for cell in after.cells if cell.own], need.global_shape)
    assert own == held(need, rank) & drawn
    assert elements(after, [cell for cell in after.cells if cell.arrives], need.global_shape) == arriving & drawn


def test_a_rank_among_thousands_is_in_its_picture() -> None:
    texts = ("f32[8192/dp, 4]", "f32[8192, 4]")
    change = redistribution(*(sl.Layout.parse(text, sl.Mesh(dp=4096)) for text in texts))
    assert change is not None
    record = change_record(change, rank=2000)
    (mine,) = (cell for cell in record.before.cells if cell.own)
    assert record.before.dims[0][mine.segments[0]].text == "4000:4002"
    assert [each.text for each in record.before.dims[0]].count("…") == 2
    assert "rank 2000 gets 32,760 of its 32,768 elements from others" in record.alt


def test_a_carried_out_reduction_arrives_whole() -> None:
    change = redistribution(*(sl.Layout.parse(text, MESH) for text in ("f32[8, 4]{sum: tp}", "f32[8/tp, 4]")))
    assert change is not None
    record = change_record(change, rank=5)
    assert record.actions == ("reduce_scatter(tp)",)
    assert [cell.ranks for cell in record.after.cells if cell.arrives] == [(1, 5)]
    assert "rank 5 gets 8 of its 8 elements from others" in repr(change.draw(rank=5))


def test_both_split_orders_look_different() -> None:
    ranks = {
        text: [cell.ranks for cell in grid_record(sl.Layout.parse(text, MESH)).cells]
        for text in ("f32[8/dp/tp]", "f32[8/tp/dp]")
    }
    assert ranks["f32[8/dp/tp]"] == [(rank,) for rank in range(8)]
    assert ranks["f32[8/tp/dp]"] == [(0,), (4,), (1,), (5,), (2,), (6,), (3,), (7,)]


@pytest.mark.parametrize(
    ("text", "mesh", "told"),
    [
        ("f32[5/dp]", sl.Mesh(dp=4), ["dp 3: nothing", "numbers: ranks", "stripe 1: dp, from 0 (faint) to 3 (full)"]),
        ("f32[8, 4]{sum: tp}", MESH, ["pending sum over tp: the tensor is the sum of 4 such pieces"]),
        ("f32[8192/dp]", sl.Mesh(dp=8192), ["8191:8192", "… stands for parts that are not drawn"]),
        ("f32[8/dp]", sl.Mesh(dp=2, tp=64), ["dp=1", "the same for every index of tp"]),
        ("f32[]", sl.Mesh(dp=4), ["0 1 2 3"]),
        ("f32[0/dp, 3]", sl.Mesh(dp=2), ["it has no elements: what a rank holds is empty"]),
        ("f32[2/dp, 3]", sl.Mesh(dp=8), ["dp 2 to 7: nothing"]),
        ("f32[3/dp/tp]", sl.Mesh(dp=2, tp=2), ["dp 1 tp 1: nothing"]),
    ],
)
def test_a_picture_says_what_no_cell_shows(text: str, mesh: sl.Mesh, told: list[str]) -> None:
    layout = sl.Layout.parse(text, mesh)
    picture = layout.draw()
    written = [node.text for node in ElementTree.fromstring(picture.svg).iter() if node.text]
    assert text in written
    for each in told:
        assert each in written
    assert picture.svg == layout.draw().svg
    assert len(re.findall("<rect", picture.svg)) < 1000


def test_too_many_dims_are_refused() -> None:
    with pytest.raises(LayoutError, match="a tensor of 7 dims on 2 axes is too much for one picture"):
        sl.Layout.parse("...", MESH, (1,) * 7, torch.float32).draw()
