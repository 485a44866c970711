"""What a collective does to the state of a value, and how states are followed through a graph."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import spmd_lab as sl
from spmd_lab import Layout, Mesh
from spmd_lab.prove.algebra import leads_to, state_of, transition
from spmd_lab.prove.collectives import Request
from spmd_lab.prove.contractions import summed_dims
from spmd_lab.prove.layouts import check_graph
from tests.prove.mutants import altered, aten, bypass, c10d, named, names, with_argument

STATES = ("whole", "divided", "sum", "avg", "max", "min", "product")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    ("request_", "allowed"),
    [
        (Request("all_reduce", "tp", "sum"), {"sum": "whole"}),
        (Request("all_reduce", "tp", "avg"), {"avg": "whole"}),
        (Request("reduce_scatter", "tp", "max"), {"max": "divided"}),
        (Request("all_gather", "tp"), {"divided": "whole"}),
        (Request("all_to_all", "tp", gather_dim=0, shard_dim=1), {"divided": "divided"}),
    ],
)
def test_a_collective_is_right_in_one_state(state: str, request_: Request, allowed: dict[str, str]) -> None:
    assert transition(state, request_) == allowed.get(state)


@pytest.mark.parametrize("reached", STATES)
@pytest.mark.parametrize("wanted", STATES)
def test_moving_data_divides_what_is_whole_and_completes_nothing(reached: str, wanted: str) -> None:
    assert leads_to((reached,), (wanted,)) == (reached in (wanted, "whole"))


def test_an_axis_of_one_rank_is_whole() -> None:
    mesh = Mesh(dp=1, tp=2, cp=1)
    assert state_of(Layout.parse("f32[4/dp/tp]{sum: cp}", mesh)) == ("whole", "divided", "whole")


def test_a_strided_division_is_a_division() -> None:
    assert state_of(Layout.parse("f32[(2 4/tp)]", Mesh(tp=2))) == ("divided",)


@pytest.mark.parametrize(
    ("op", "shapes", "more", "wanted"),
    [
        (aten.mm.default, [(2, 3), (3, 4)], (), {0: (1,), 1: (0,)}),
        (aten.bmm.default, [(5, 2, 3), (5, 3, 4)], (), {0: (2,), 1: (1,)}),
        (aten.addmm.default, [(4,), (2, 3), (3, 4)], (), {1: (1,), 2: (0,)}),
        (aten.sum.default, [(2, 3)], (), {0: (0, 1)}),
        (aten.sum.dim_IntList, [(2, 3, 4)], ([0, -1],), {0: (0, 2)}),
        (aten.mean.dim, [(2, 3)], ([1],), {0: (1,)}),
        (aten.sum.dim_IntList, [(2, 3)], ([],), {0: (0, 1)}),
        (aten.relu.default, [(2, 3)], (), {}),
    ],
)
def test_the_dims_that_are_summed_over(
    op: object, shapes: list[tuple[int, ...]], more: tuple[object, ...], wanted: dict[int, tuple[int, ...]]
) -> None:
    graph = fx.Graph()
    inputs = [graph.placeholder(f"x{position}") for position in range(len(shapes))]
    for node, shape in zip(inputs, shapes, strict=True):
        node.meta["val"] = torch.empty(shape)
    assert summed_dims(graph.call_function(op, (*inputs, *more))) == wanted  # type: ignore[arg-type]


# --- graphs -------------------------------------------------------------------------------------


def counted_loss() -> sl.Program:
    """A mean over rows of which some are ignored: its local program adds up the counts itself."""
    targets = torch.tensor([0, -100, 2, 1, -100, -100, 2, 0])
    traced = sl.trace(lambda x: F.cross_entropy(x, targets), torch.randn(8, 3), backward=False)
    return sl.rebuild(sl.expand(traced, sl.Mesh(dp=2, tp=2), inputs={"x": "8/dp/tp _", "targets": "8/dp/tp"}))


def own_collectives(program: sl.Program) -> list[str]:
    return [
        node.name
        for node in program.graph_module.graph.nodes
        if node.target is c10d.all_reduce.default and "spmd_operand" not in node.meta
    ]


@pytest.mark.parametrize("how", ["dropped", "other axis", "doubled"])
def test_the_collectives_of_a_local_program_are_those_that_it_announces(how: str) -> None:
    program = counted_loss()
    first, second = own_collectives(program)
    assert program.verify().ok
    changes = {
        "dropped": bypass(first),
        "other axis": with_argument(first, 2, named(program.graph_module.graph, second).args[2]),
        "doubled": lambda graph: repeat(graph, first),
    }
    found = altered(program, changes[how]).verify().divergences
    assert {each.step.name for each in found if each.step} == {
        named(program.graph_module.graph, first).meta["spmd_step"]
    }
    assert "its own collectives are not those that it announces" in {each.reason for each in found}


def repeat(graph: fx.Graph, name: str) -> None:
    node = named(graph, name)
    with graph.inserting_after(node):
        again = graph.call_function(node.target, (node, *node.args[1:]))  # type: ignore[arg-type]
    again.meta = dict(node.meta)
    node.replace_all_uses_with(again, delete_user_cb=lambda user: user is not again)


def branching() -> sl.Program:
    """A pending value that two operators reduce, each for itself."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        return y.relu() + y.exp()

    traced = sl.trace(fn, torch.randn(4, 6), torch.randn(6, 2), backward=False)
    layouts = {"x": "4 6/tp", "w": "6/tp 2"}
    return sl.rebuild(sl.expand(traced, sl.Mesh(tp=2), inputs=layouts, outputs={"out": "_ _"}))


def share(graph: fx.Graph, step: str, other: str) -> None:
    """Let a step read what another one has reduced already."""
    ends = {
        node.meta["spmd_step"]: node for node in graph.nodes if node.target is c10d.wait_tensor.default and node.meta
    }
    mine, theirs = ends[step], ends[other]
    mine.replace_all_uses_with(theirs)
    (reduction,) = mine.all_input_nodes
    graph.erase_node(mine)
    graph.erase_node(reduction)


def test_a_redistribution_may_be_shared_by_steps() -> None:
    program = branching()
    first, second, *_ = [step.name for step in program.expansion.steps if step.collectives]
    assert altered(program, lambda graph: share(graph, second, first)).verify().ok


def test_one_reduction_does_not_stand_for_another() -> None:
    """An operator that reads the pending value itself is wrong, whoever else has reduced it."""
    program = branching()
    _, second, *_ = [step.name for step in program.expansion.steps if step.collectives]
    (name,) = names(program, c10d.all_reduce.default, second)
    first = altered(program, bypass(name)).verify().first_divergence
    assert first is not None
    assert first.step is program.expansion.step(second)


def test_a_read_of_what_is_no_operand_is_found_without_any_number() -> None:
    program = branching()
    _, second, *_ = [step.name for step in program.expansion.steps if step.collectives]
    (reader,) = names(program, aten.exp.default)
    wrong = altered(program, with_argument(reader, 0, names(program, aten.relu.default)[0]))
    findings = list(check_graph(program.expansion, wrong.graphs[0].graph))
    assert [(each.step, each.reason) for each in findings][:1] == [(second, "it reads what is none of its operands")]


def test_a_redistribution_of_another_value_is_found() -> None:
    program = branching()
    _, second, *_ = [step.name for step in program.expansion.steps if step.collectives]
    (name,) = names(program, c10d.all_reduce.default, second)
    wrong = altered(program, with_argument(name, 0, "x"))
    assert {each.step for each in check_graph(program.expansion, wrong.graphs[0].graph)} >= {second}
