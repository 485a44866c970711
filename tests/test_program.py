"""The rebuilt program: what its nodes know, which ranks share it, and what it takes and gives."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import spmd_lab as sl
from spmd_lab.demo import GPT, expand_demo
from spmd_lab.errors import RebuildError


@pytest.fixture(scope="module")
def gpt() -> sl.Expansion:
    torch.manual_seed(0)
    return expand_demo(sl.Mesh(dp=2, tp=4), GPT(), vocabulary=256)


def calls(graph_module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in graph_module.graph.nodes if node.op == "call_function"]


def perceptron(batch: int = 8) -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), torch.rand(batch, 4)


def test_every_node_of_the_program_knows_its_step(gpt: sl.Expansion) -> None:
    steps = {step.name for step in gpt.steps}
    assert {node.meta["spmd_step"] for node in calls(gpt.program.graph_module)} == steps
    for node in calls(gpt.program.graph_module):
        step = gpt.step(node.meta["spmd_step"])
        assert (node.meta["source"], node.meta["phase"]) == (step.source, step.phase)


def test_every_traced_value_that_is_read_is_carried_by_one_node(gpt: sl.Expansion) -> None:
    carried = [node.meta["spmd_value"] for node in calls(gpt.program.graph_module) if "spmd_value" in node.meta]
    assert len(carried) == len(set(carried))
    traced = gpt.traced.graph_module.graph.nodes
    read = {node.name for node in traced if node.op == "call_function" and node.users and node.name in gpt.layouts}
    assert read <= set(carried)


def test_the_program_takes_and_gives_what_the_traced_one_does(gpt: sl.Expansion) -> None:
    program = gpt.program
    placeholders = [node.name for node in program.graph_module.graph.nodes if node.op == "placeholder"]
    assert placeholders == [found.node for found in gpt.traced.inputs]
    assert len(program.input_layouts) == len(gpt.traced.inputs)
    assert len(program.output_layouts) == len(gpt.traced.outputs)


def test_ranks_share_one_graph_where_nothing_depends_on_the_rank() -> None:
    model, x = perceptron()
    program = sl.spmd_expand(model, x, mesh=sl.Mesh(dp=4), batch="dp").program
    assert program.rank_axes == frozenset()
    assert program.for_rank(3) is program.for_rank(0) is program.graph_module


def test_ranks_differ_only_along_the_axes_that_matter(gpt: sl.Expansion) -> None:
    """A divided vocabulary: each rank of an axis looks up words of its own."""
    program = sl.expand(gpt.traced, gpt.mesh, batch="dp", params={"tokens.weight": "v/tp d"}).program
    assert program.rank_axes == {"tp"}
    assert program.for_rank(1) is program.for_rank(5)
    assert program.for_rank(1) is not program.for_rank(0)
    kinds = [[node.target for node in calls(program.for_rank(rank))] for rank in (0, 1)]
    assert kinds[0] == kinds[1]


def test_uneven_ranks_run_the_same_nodes_with_other_constants() -> None:
    model, x = perceptron(batch=5)
    expansion = sl.spmd_expand(model, x, mesh=sl.Mesh(dp=4), batch="dp", outputs={"out": "..."})
    targets = [[node.target for node in calls(expansion.program.for_rank(rank))] for rank in range(4)]
    assert all(each == targets[0] for each in targets)
    expansion.program.verify().raise_if_wrong()


def test_a_mesh_of_thousands_is_a_description() -> None:
    model, _ = perceptron()
    fake = torch.empty(16384, 4, device="meta")
    program = sl.spmd_expand(model, fake, mesh=sl.Mesh(dp=1024, tp=8), batch="dp").program
    assert program.input_layouts[-2].local_shape(8191) == (16, 4)
    assert program.for_rank(8191) is program.graph_module


def test_programs_do_not_touch_torch_distributed(gpt: sl.Expansion) -> None:
    assert not torch.distributed.is_initialized()
    gpt.program.for_rank(7)
    assert not torch.distributed.is_initialized()


def test_the_program_is_rebuilt_once_per_expansion(gpt: sl.Expansion) -> None:
    assert gpt.program is gpt.program
    assert sl.rebuild(gpt) is not gpt.program


def test_a_node_without_a_step_is_refused(gpt: sl.Expansion) -> None:
    from dataclasses import replace

    broken = replace(gpt, steps=tuple(step for step in gpt.steps if step.name != "mm_3"))
    with pytest.raises(RebuildError, match="mm_3 has no step"):
        sl.rebuild(broken)


def test_a_rank_zero_program_run_everywhere_is_found_out() -> None:
    """The classic silent error: a slice that rank 0 takes is taken by every rank."""
    expansion = sl.spmd_expand(nn.Identity(), torch.rand(8, 4), mesh=sl.Mesh(dp=2), outputs={"out": "b/dp d"})
    expansion.program.verify().raise_if_wrong()
    first = expansion.program.graph_module
    everywhere = expansion.program.rewrite(lambda _: copy.deepcopy(first))
    report = everywhere.verify()
    assert not report.ok
    assert report.first_divergence.step.name == "resolve:out"
    assert report.first_divergence.rank == 1


def test_a_step_that_sends_more_than_it_says_is_named() -> None:
    expansion = sl.spmd_expand(torch.nn.Linear(4, 2), torch.ones(8, 4), mesh=sl.Mesh(dp=4), batch="dp")
    silent = tuple(replace(step, collectives=()) for step in expansion.steps)
    with pytest.raises(RebuildError, match=r"resolve:grad\(.*\) sends more than the 0 collectives that it says"):
        sl.rebuild(replace(expansion, steps=silent))
