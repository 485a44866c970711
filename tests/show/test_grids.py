"""Pictures of layouts and redistributions: what is drawn is what the element map says."""

from __future__ import annotations

import re
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
from spmd_lab.layout import replicated
from spmd_lab.records.grids import change_record, grid_record
from tests.base.strategies import layouts

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


@settings(deadline=None, max_examples=150)
@given(layouts())
def test_every_drawn_cell_is_what_its_ranks_hold(layout: sl.Layout) -> None:
    grid = grid_record(layout)
    drawn = elements(grid, list(grid.cells), layout.global_shape)
    if not any(segment.hidden for dim in grid.dims for segment in dim):
        assert drawn == set(range(torch.Size(layout.global_shape).numel()))
    for rank in range(layout.mesh.size):
        where = dict(zip(layout.mesh.axes, layout.mesh.coordinate(rank), strict=True))
        cells = [cell for cell in grid.cells if all(where[p.axis.text] == p.index for p in cell.places)]
        assert elements(grid, cells, layout.global_shape) == held(layout, rank) & drawn
        assert all(rank in cell.ranks for cell in cells if cell.ranks)


@settings(deadline=None, max_examples=60)
@given(layouts(), st.data())
def test_what_arrives_is_what_a_rank_did_not_hold(layout: sl.Layout, data: st.DataObject) -> None:
    settled = layout.with_placements([Replicate() if isinstance(p, Partial) else p for p in layout.placements])
    whole = replicated(layout.global_shape, layout.dtype, layout.mesh)
    change = redistribution(settled, whole)
    if change is None:
        return
    rank = data.draw(st.integers(0, layout.mesh.size - 1))
    after = change_record(change, rank).after
    arriving = elements(after, [cell for cell in after.cells if cell.arrives], layout.global_shape)
    assert arriving == held(whole, rank) - held(settled, rank)


def test_a_carried_out_reduction_arrives_whole() -> None:
    change = redistribution(*(sl.Layout.parse(text, MESH) for text in ("f32[8, 4]{sum: tp}", "f32[8/tp, 4]")))
    assert change is not None
    record = change_record(change, rank=5)
    assert record.actions == ("reduce_scatter(tp)",)
    assert [cell.ranks for cell in record.after.cells if cell.arrives] == [(1, 5)]
    assert "what rank 5 gets from others is hatched" in repr(change.draw(rank=5))


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
        ("f32[5/dp]", sl.Mesh(dp=4), ["dp 3: nothing", "numbers are ranks; stripes: dp"]),
        ("f32[8, 4]{sum: tp}", MESH, ["pending sum over tp: one of 4 pieces"]),
        ("f32[8192/dp]", sl.Mesh(dp=8192), ["8191:8192", "… stands for parts that are not drawn"]),
        ("f32[8/dp]", sl.Mesh(dp=2, tp=64), ["dp=1", "the same for every index of tp"]),
        ("f32[]", sl.Mesh(dp=4), ["0 1 2 3"]),
        ("f32[0/dp, 3]", sl.Mesh(dp=2), ["dp 0, 1: nothing"]),
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
