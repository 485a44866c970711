"""Ranks run side by side: what they hand to each other, when they cannot go on, and what the observer is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import fx

from spmd_lab import Mesh
from spmd_lab.prove.one_rank import SimulationError, operand_ends
from spmd_lab.prove.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

aten = torch.ops.aten
c10d = torch.ops._c10d_functional
Build = "Callable[[fx.Graph, fx.Node], Any]"


class Notes:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.values: list[tuple[str, list[Any]]] = []
        self.operands: list[tuple[str, int, list[Any], list[Any]]] = []

    def value(self, name: str, tensors: Sequence[Any]) -> None:
        self.values.append((name, [tensor.tolist() for tensor in tensors]))

    def operand(self, step: str, index: int, before: Sequence[Any], after: Sequence[Any]) -> None:
        self.operands.append((step, index, [each.tolist() for each in before], [each.tolist() for each in after]))


def module(
    build: Callable[[fx.Graph, fx.Node], Any], constants: dict[str, torch.Tensor] | None = None
) -> fx.GraphModule:
    """A graph of one input; every operator belongs to a step named after its node."""
    graph = fx.Graph()
    graph.output(build(graph, graph.placeholder("x")))
    for node in graph.nodes:
        if node.op == "call_function":
            node.meta.setdefault("spmd_step", node.name)
    return fx.GraphModule(constants or {}, graph)


def call(graph: fx.Graph, op: object, *args: Any, **meta: object) -> fx.Node:
    node = graph.call_function(op, args)  # type: ignore[arg-type]
    node.meta.update({f"spmd_{name}": value for name, value in meta.items()})
    return node


def reduced(graph: fx.Graph, x: fx.Node, op: str = "sum", axis: str = "tp") -> fx.Node:
    return call(graph, c10d.wait_tensor.default, call(graph, c10d.all_reduce.default, x, op, axis))


def gathered(graph: fx.Graph, x: fx.Node, size: int = 2, axis: str = "tp") -> fx.Node:
    return call(graph, c10d.wait_tensor.default, call(graph, c10d.all_gather_into_tensor.default, x, size, axis))


def run(graphs: list[fx.GraphModule], mesh: Mesh, inputs: list[torch.Tensor], notes: Notes | None = None) -> list[Any]:
    return simulate(graphs, mesh, [[each] for each in inputs], notes or Notes())


def alike(graph: fx.GraphModule, mesh: Mesh) -> list[fx.GraphModule]:
    return [graph] * mesh.size


def test_groups_meet_along_their_axis() -> None:
    mesh = Mesh(dp=2, tp=2)
    graph = module(lambda g, x: (reduced(g, x, axis="dp"), reduced(g, x, axis="tp"), gathered(g, x, axis="tp")))
    results = run(alike(graph, mesh), mesh, [torch.tensor([float(10**rank)]) for rank in range(4)])
    assert [each[0].item() for each in results] == [101, 1010, 101, 1010]
    assert [each[1].item() for each in results] == [11, 11, 1100, 1100]
    assert [each[2].tolist() for each in results] == [[1, 10], [1, 10], [100, 1000], [100, 1000]]


def test_lists_tuples_none_numbers_and_constants_pass_through() -> None:
    def build(graph: fx.Graph, x: fx.Node) -> Any:
        pieces = call(graph, aten.chunk.default, x, 2)
        first = graph.call_function(__import__("operator").getitem, (pieces, 0))
        return [call(graph, aten.add.Tensor, first, graph.get_attr("weight")), None, 3]

    mesh = Mesh(tp=2)
    results = run(alike(module(build, {"weight": torch.tensor([5.0])}), mesh), mesh, [torch.ones(2), torch.zeros(2)])
    assert [(each[0].tolist(), each[1], each[2]) for each in results] == [([6.0], None, 3), ([5.0], None, 3)]


def test_the_observer_is_told_of_a_value_once_all_ranks_have_it() -> None:
    def build(graph: fx.Graph, x: fx.Node) -> fx.Node:
        doubled = call(graph, aten.mul.Tensor, x, 2, value="mul")
        moved = call(graph, aten.neg.default, doubled, operand=1, step="s")
        end = call(graph, aten.add.Tensor, moved, 1, operand=1, step="s")
        return call(graph, aten.add.Tensor, end, 1, value="add")

    mesh, notes = Mesh(tp=2), Notes()
    run(alike(module(build), mesh), mesh, [torch.tensor(1), torch.tensor(2)], notes)
    assert notes.values == [("mul", [2, 4]), ("add", [0, -2])]
    assert notes.operands == [("s", 1, [2, 4], [-1, -3])]


def test_the_last_node_of_a_redistribution_is_its_end_whatever_constants_it_reads() -> None:
    def build(graph: fx.Graph, x: fx.Node) -> fx.Node:
        order = graph.get_attr("order")
        order.meta = {"spmd_step": "s", "spmd_operand": 0}
        first = call(graph, aten.index_select.default, x, 0, order, operand=0, step="s")
        return call(graph, aten.neg.default, call(graph, aten.abs.default, first, operand=0, step="s"), step="s")

    graph = module(build, {"order": torch.tensor([0])}).graph
    ends = operand_ends(graph)
    assert [(node.name, *found[:2], found[2].name) for node, found in ends.items()] == [("abs_default", "s", 0, "x")]


def test_values_are_let_go_after_their_last_use() -> None:
    alive: list[int] = []
    seen: list[Any] = []

    def watch(value: torch.Tensor) -> torch.Tensor:
        import weakref

        alive.append(sum(each() is not None for each in seen))
        made = value + 1
        seen.append(weakref.ref(made))
        return made

    def build(graph: fx.Graph, x: fx.Node) -> fx.Node:
        for _ in range(6):
            x = call(graph, watch, x)
        return x

    run([module(build)], Mesh(tp=1), [torch.zeros(())])
    assert max(alive) == 1


def test_what_one_rank_writes_into_its_tensors_no_other_rank_sees() -> None:
    def build(graph: fx.Graph, x: fx.Node) -> Any:
        total = reduced(graph, x)
        return call(graph, aten.add_.Tensor, total, x), call(graph, aten.mul_.Tensor, x, 2)

    mesh, shared = Mesh(tp=2), torch.tensor([1.0])
    results = run(alike(module(build), mesh), mesh, [shared, shared])
    assert [each[0].tolist() for each in results] == [[3.0], [3.0]]
    assert shared.tolist() == [1.0]


# --- ranks that cannot go on together -----------------------------------------------------------


def failure(graphs: list[fx.GraphModule], mesh: Mesh, inputs: list[torch.Tensor] | None = None) -> SimulationError:
    with pytest.raises(SimulationError) as caught:
        run(graphs, mesh, inputs or [torch.ones(2)] * mesh.size)
    return caught.value


def test_ranks_that_ask_for_different_reductions_are_named() -> None:
    graphs = [module(lambda g, x: reduced(g, x, "sum")), module(lambda g, x: reduced(g, x, "max"))]
    error = failure(graphs, Mesh(tp=2))
    assert error.what == (
        "rank 0 asks for all_reduce(sum, tp) in step all_reduce_default, "
        "rank 1 for all_reduce(max, tp) in step all_reduce_default"
    )
    assert (error.step, error.rank) == ("all_reduce_default", 1)


def test_ranks_that_ask_in_another_order_are_named() -> None:
    one = module(lambda g, x: (reduced(g, x), gathered(g, x)))
    other = module(lambda g, x: (gathered(g, x), reduced(g, x)))
    assert "rank 1 for all_gather(tp)" in failure([one, other], Mesh(tp=2)).what


def test_ranks_that_wait_on_different_axes_are_named() -> None:
    one = module(lambda g, x: (reduced(g, x, axis="dp"), reduced(g, x, axis="tp")))
    other = module(lambda g, x: (reduced(g, x, axis="tp"), reduced(g, x, axis="dp")))
    error = failure([one, other, other, one], Mesh(dp=2, tp=2))
    assert error.what == (
        "rank 0 waits for all_reduce(sum, dp) in step all_reduce_default; "
        "rank 2 waits for all_reduce(sum, tp) in step all_reduce_default"
    )


def test_ranks_that_meet_in_different_steps_are_named() -> None:
    one = module(lambda g, x: (reduced(g, x, axis="dp"), reduced(g, x, axis="tp")))
    other = module(lambda g, x: (reduced(g, x, axis="tp"), reduced(g, x, axis="dp")))
    error = failure([one, one, other, other], Mesh(dp=2, tp=2))
    assert error.what.endswith("rank 2 for all_reduce(sum, dp) in step all_reduce_default_1")


def test_a_partner_that_never_comes_is_named() -> None:
    error = failure([module(lambda g, x: reduced(g, x)), module(lambda g, x: x)], Mesh(tp=2))
    assert error.what == "rank 0 waits for all_reduce(sum, tp) in step all_reduce_default; rank 1 has finished"


def test_ranks_that_hand_in_different_shapes_are_named() -> None:
    error = failure(alike(module(lambda g, x: reduced(g, x)), Mesh(tp=2)), Mesh(tp=2), [torch.ones(2), torch.ones(3)])
    assert error.what.startswith("ranks 0, 1: the ranks of one all_reduce(sum, tp) hand in different tensors")


def test_a_group_of_another_size_is_named() -> None:
    error = failure(alike(module(lambda g, x: gathered(g, x, size=4)), Mesh(tp=2)), Mesh(tp=2))
    assert error.what == "rank 0 runs all_gather(tp) over 4 ranks; axis 'tp' has 2"


def test_an_axis_that_the_mesh_lacks_is_named() -> None:
    assert "no axis 'ep'" in failure(alike(module(lambda g, x: reduced(g, x, axis="ep")), Mesh(tp=2)), Mesh(tp=2)).what


def test_an_operator_that_a_rank_cannot_run_is_named() -> None:
    graph = module(lambda g, x: call(g, aten.mm.default, x, x))
    error = failure(alike(graph, Mesh(tp=2)), Mesh(tp=2), [torch.ones(2, 2), torch.ones(2, 3)])
    assert error.what.startswith("rank 1 cannot run aten.mm.default: ")
    assert (error.step, error.rank) == ("mm_default", 1)
    assert isinstance(error.__cause__, RuntimeError)


def test_a_value_that_only_some_ranks_compute_is_named() -> None:
    one = module(lambda g, x: call(g, aten.neg.default, x, value="neg"))
    other = module(lambda g, x: call(g, aten.neg.default, x))
    assert failure([one, other], Mesh(tp=2)).what == "rank 1 never computes value neg, as rank 0 does"
