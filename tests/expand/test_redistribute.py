"""Every redistribution gives every rank what its new layout says, for any two layouts of one tensor."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from spmd_lab import Layout, Mesh
from spmd_lab.errors import LayoutError
from spmd_lab.expand.redistribute import plan_moves, redistribution
from spmd_lab.expand.steps import step_graph
from spmd_lab.expand.subgraph import Subgraph
from spmd_lab.prove.pieces import assemble, cut, replicas
from spmd_lab.prove.simulate import simulate
from spmd_lab.rules import Plan

MESHES = [Mesh(dp=4), Mesh(dp=2, tp=2), Mesh(dp=3, tp=2), Mesh(dp=2, tp=3, cp=2)]
SHAPES = [(8, 12), (5, 7), (16,), (1, 9), (24, 6, 2), (3, 1)]


class Deaf:
    """An observer that looks at nothing."""

    def value(self, name: str, tensors: object) -> None: ...

    def operand(self, step: str, index: int, before: object, after: object) -> None: ...


@st.composite
def journeys(draw: st.DrawFn) -> tuple[Layout, Layout]:
    """Two layouts of one tensor on one mesh."""
    mesh = draw(st.sampled_from(MESHES))
    shape = draw(st.sampled_from(SHAPES))
    dims = st.integers(0, len(shape) - 1)
    kinds = draw(st.sampled_from([["sum", "avg"], ["max"], ["min"], ["product"]]))
    placement = (
        st.just(Replicate())
        | st.sampled_from(kinds).map(Partial)
        | dims.map(Shard)
        | st.builds(lambda dim, sf: _StridedShard(dim, split_factor=sf), dims, st.sampled_from([2, 3, 4, 6]))
    )
    ends = [draw(st.lists(placement, min_size=mesh.ndim, max_size=mesh.ndim)) for _ in range(2)]
    have, need = (Layout(shape, torch.float64, mesh, end) for end in ends)
    return have, need


def pieces_of(layout: Layout, whole: torch.Tensor) -> list[torch.Tensor]:
    """What the ranks hold: of a pending tensor, uneven pieces that give the whole."""
    mesh = layout.mesh
    held = []
    for rank in range(mesh.size):
        piece = cut(whole, layout, rank)
        for axis, kind in reversed(list(layout.pending.items())):
            index, size = mesh.coordinate(rank)[mesh.axis_index(axis)], mesh.axis_size(axis)
            weights = torch.arange(1.0, size + 1, dtype=torch.float64)
            if kind in ("sum", "avg"):
                weights = weights / weights.sum() * (size if kind == "avg" else 1)
                piece = piece * weights[index]
            elif kind == "product":
                piece = piece.abs() ** (weights / weights.sum())[index] * (piece.sign() if index == 0 else 1)
            else:
                piece = piece + (-1 if kind == "max" else 1) * index
        held.append(piece)
    return held


def run(have: Layout, need: Layout, whole: torch.Tensor) -> list[torch.Tensor]:
    plan = Plan((need,), (need,), lambda _, nodes: nodes[0])
    subgraph = Subgraph(have.mesh, (have,), (0,), plan, gives_tuple=False)
    graphs: list[fx.GraphModule] = [step_graph(subgraph, ("x",), rank) for rank in range(have.mesh.size)]
    for node in (node for graph in graphs for node in graph.graph.nodes):
        node.meta["spmd_step"] = "resolve:x"
    kinds = [[node.target for node in graph.graph.nodes if node.op == "call_function"] for graph in graphs]
    assert all(each == kinds[0] for each in kinds), "ranks run different nodes"
    given_pieces = [[piece] for piece in pieces_of(have, whole)]
    outputs = simulate(graphs, have.mesh, given_pieces, Deaf())
    return [out if isinstance(out, torch.Tensor) else out[0] for out in outputs]


@given(journeys())
@settings(max_examples=300, deadline=None)
def test_every_rank_gets_what_the_new_layout_says(journey: tuple[Layout, Layout]) -> None:
    have, need = journey
    whole = torch.arange(1.0, 1 + torch.Size(have.global_shape).numel(), dtype=torch.float64).reshape(have.global_shape)
    held = run(have, need, whole)
    for rank, tensor in enumerate(held):
        assert tensor.shape == need.local_shape(rank)
    for copy in replicas(need):
        torch.testing.assert_close(assemble(need, held, copy).value, whole)


@given(journeys())
@settings(max_examples=300, deadline=None)
def test_moves_form_a_chain_of_layouts(journey: tuple[Layout, Layout]) -> None:
    have, need = journey
    moves = plan_moves(have, need)
    ends = [have, *(move.after for move in moves)]
    assert [move.before for move in moves] == ends[:-1]
    assert ends[-1] == need


def kinds(have: str, need: str, mesh: Mesh) -> list[tuple[str, str]]:
    moves = redistribution(Layout.parse(have, mesh), Layout.parse(need, mesh))
    return [(move.kind, move.axis) for move in moves.moves] if moves else []


@pytest.mark.parametrize(
    ("have", "need", "expected"),
    [
        ("f32[16/dp, 8]", "f32[16/dp, 8]", []),
        ("f32[16/dp, 8]", "f32[16, 8]", [("all_gather", "dp")]),
        ("f32[16, 8]{sum: dp}", "f32[16, 8]", [("all_reduce", "dp")]),
        ("f32[16, 8]{sum: tp}", "f32[16/tp, 8]", [("reduce_scatter", "tp")]),
        ("f32[16/tp, 8]", "f32[16, 8/tp]", [("all_to_all", "tp")]),
        ("f32[16, 8]{sum: dp}", "f32[16/tp, 8]", [("slice", "tp"), ("all_reduce", "dp")]),
        ("f32[16/dp/tp, 8]", "f32[16/dp, 8]", [("all_gather", "tp")]),
        ("f32[16/tp/dp, 8]", "f32[16/tp, 8]", [("all_gather", "dp")]),
        ("f32[16/dp/tp, 8]", "f32[16/tp, 8]", [("all_gather", "tp"), ("all_gather", "dp"), ("slice", "tp")]),
        ("f32[(16/dp 8/tp)]", "f32[128/dp]", [("all_gather", "tp")]),
        ("f32[128]", "f32[(16/dp 8/tp)]", [("slice", "dp"), ("slice", "tp")]),
        ("f32[16, 8]{sum: dp, tp}", "f32[16, 8]", [("all_reduce", "dp"), ("all_reduce", "tp")]),
        ("f32[16, 8]", "f32[16, 8]{sum: dp}", [("split_pending", "dp")]),
        ("f32[16, 8]{avg: dp}", "f32[16, 8]{sum: dp}", [("all_reduce", "dp"), ("split_pending", "dp")]),
    ],
)
def test_the_moves_are_the_cheapest_that_do_it(have: str, need: str, expected: list[tuple[str, str]]) -> None:
    assert kinds(have, need, Mesh(dp=2, tp=4)) == expected


def test_reductions_that_do_not_commute_are_refused() -> None:
    mesh = Mesh(dp=2, tp=2)
    mixed = Layout.parse("f32[4]{sum: dp; max: tp}", mesh)
    with pytest.raises(LayoutError, match="max and sum are pending at once"):
        plan_moves(mixed, Layout.parse("f32[4]", mesh))
