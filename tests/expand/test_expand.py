"""What an expansion says, and that the program it stands for equals the single-device run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.nn import functional as F

import spmd_lab as sl
from spmd_lab.demo import GPT, expand_demo
from spmd_lab.expand.subgraph import forget_subgraphs


def proved(fn: Any, *args: Any, mesh: sl.Mesh, **how: Any) -> sl.Expansion:
    """Expand, and prove equal."""
    expansion = sl.spmd_expand(fn, *args, mesh=mesh, **how)
    expansion.program.verify().raise_if_wrong()
    return expansion


def weighted(out: torch.Tensor) -> torch.Tensor:
    """A loss that a wrong gradient cannot hide behind."""
    return (out * torch.linspace(0.5, 1.5, out.numel()).reshape(out.shape)).sum()


@pytest.fixture(scope="module")
def gpt() -> sl.Expansion:
    torch.manual_seed(0)
    return expand_demo(sl.Mesh(dp=2, tp=4), GPT(), vocabulary=256)


# --- steps ---


def test_there_is_a_step_for_every_operator_in_order_then_the_resolved_outputs(gpt: sl.Expansion) -> None:
    operators = [node.name for node in gpt.traced.op_nodes]
    assert [step.name for step in gpt.steps[: len(operators)]] == operators
    rest = gpt.steps[len(operators) :]
    assert all(step.op == "resolve" and step.name.startswith("resolve:") for step in rest)
    assert [step.phase for step in rest] == ["forward"] + ["backward"] * (len(rest) - 1)
    assert rest[0].name == "resolve:loss"


def test_a_step_says_operand_by_operand_what_it_has_and_needs(gpt: sl.Expansion) -> None:
    step = gpt["native_layer_norm_1"]
    assert [operand.name for operand in step.operands] == ["add_1", "blocks.0.n2.weight", "blocks.0.n2.bias"]
    first = step.operands[0]
    assert (str(first.have), str(first.need)) == ("f32[8/dp, 32, 64]{sum: tp}", "f32[8/dp, 32, 64]")
    assert [(move.kind, move.axis) for move in first.redistribution.moves] == [("all_reduce", "tp")]
    assert [operand.needs_redistribute for operand in step.operands] == [True, False, False]
    assert [str(output) for output in step.outputs] == [
        "f32[8/dp, 32, 64]",
        "f32[8/dp, 32, 1]",
        "f32[8/dp, 32, 1]",
    ]
    assert (step.op, step.phase, step.fallback) == ("aten.native_layer_norm.default", "forward", None)
    assert step.source.code.startswith("added: torch.Tensor = self.down(")
    assert step.source.module == "blocks.0.n2"


def test_the_local_graph_of_a_step_runs_collectives_then_the_operator(gpt: sl.Expansion) -> None:
    graph = gpt["native_layer_norm_1"].local_graph
    placeholders = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    called = [node.name for node in graph.graph.nodes if node.op == "call_function"]
    assert placeholders == ["add_1", "blocks_0_n2_weight", "blocks_0_n2_bias"]
    assert called[:3] == ["all_reduce", "wait_tensor", "native_layer_norm"]


def test_equal_work_is_done_once_and_kept(gpt: sl.Expansion) -> None:
    distinct = {id(subgraph) for subgraph in gpt.subgraphs.values()}
    assert len(distinct) < len(gpt.steps) / 2
    again = sl.expand(gpt.traced, gpt.mesh, batch="dp", params=sl.colwise("**.up", axis="tp"))
    assert again.subgraphs["embedding"] is gpt.subgraphs["embedding"]


def test_constants_of_different_types_are_different_work() -> None:
    def scaled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return torch.mul(x, 1), torch.mul(x, 1.0), torch.mul(x, True)

    forget_subgraphs()
    expansion = proved(scaled, torch.arange(8), mesh=sl.Mesh(dp=4), batch="dp")
    assert [output.dtype for output in expansion.output_layouts] == [torch.int64, torch.float32, torch.int64]
    assert len({id(subgraph) for subgraph in expansion.subgraphs.values()}) == 3


def test_a_value_used_twice_is_brought_over_once() -> None:
    def squared_sum(x: torch.Tensor) -> torch.Tensor:
        s = x.sum(0)
        return s * s

    expansion = proved(squared_sum, torch.rand(8, 3), mesh=sl.Mesh(dp=4), batch="dp")
    (step,) = [step for step in expansion.steps if step.op == "aten.mul.Tensor"]
    assert len(step.operands) == 2
    assert [each.kind for each in step.collectives] == ["all_reduce"]


# --- finding ---


def test_steps_are_found_by_node_step_collective_module_and_line(gpt: sl.Expansion) -> None:
    step = gpt["mm_3"]
    node = gpt.traced.node("mm_3")
    assert gpt[node] is step
    assert gpt[step] is step
    assert gpt[gpt.collectives[0]].collectives[0] == gpt.collectives[0]
    assert {found.source.module for found in gpt["blocks.0.n1"]} == {"blocks.0.n1"}
    by_line = gpt[step.source.place]
    assert step in by_line
    assert {found.source.line for found in by_line} == {step.source.line}


def test_a_getitem_belongs_to_its_producer(gpt: sl.Expansion) -> None:
    assert gpt["getitem"].op == "aten.native_layer_norm.default"
    assert str(gpt.layout("getitem")) == "f32[8/dp, 32, 64]"


def test_layouts_of_inputs_go_by_the_users_names(gpt: sl.Expansion) -> None:
    assert str(gpt.layout("blocks.0.q.weight")) == "f32[64/tp, 64]"
    assert str(gpt.layout("blocks_0_q_weight")) == "f32[64/tp, 64]"
    assert [str(gpt.layout(f"blocks.0.{name}")) for name in ("q.bias", "o.weight", "o.bias")] == [
        "f32[64/tp]",
        "f32[64, 64/tp]",
        "f32[64]",
    ]


# --- arguments ---


def test_the_batch_divides_inputs_as_long_as_the_first_also_those_closed_over() -> None:
    targets, table = torch.rand(8, 2), torch.rand(5, 2)

    def loss(out: torch.Tensor) -> torch.Tensor:
        return weighted(out - targets + table.sum(0))

    expansion = proved(nn.Linear(3, 2), torch.rand(8, 3), mesh=sl.Mesh(dp=4), batch="dp", loss=loss)
    assert expansion.batch_inputs == ("input", "targets")
    assert str(expansion.layout("table")) == "f32[5, 2]"


def test_the_batch_can_name_its_inputs_and_inputs_win() -> None:
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    named = proved(add, torch.rand(8, 2), torch.rand(8, 2), mesh=sl.Mesh(dp=2), batch=("dp", "y"))
    assert [str(layout) for layout in named.input_layouts] == ["f32[8, 2]", "f32[8/dp, 2]"]
    won = proved(add, torch.rand(8, 2), torch.rand(8, 2), mesh=sl.Mesh(dp=2), batch="dp", inputs={"x": "b d/dp"})
    assert [str(layout) for layout in won.input_layouts] == ["f32[8, 2/dp]", "f32[8/dp, 2]"]


def test_inputs_by_position_may_be_fewer_and_none() -> None:
    def add(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return x + y + z

    inputs = [None, [Shard(0)]]
    expansion = proved(add, *(torch.rand(4, 2) for _ in range(3)), mesh=sl.Mesh(dp=2), inputs=inputs)
    assert [str(layout) for layout in expansion.input_layouts] == ["f32[4, 2]", "f32[4/dp, 2]", "f32[4, 2]"]


def test_the_first_pattern_wins_and_stars_count_components() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
    params = {"*.weight": "o/tp i", "**.weight": "o i/tp", "1.**": "o/tp"}
    expansion = proved(model, torch.rand(2, 4), mesh=sl.Mesh(tp=2), params=params)
    found = {name: str(expansion.layout(name)) for name in ("0.weight", "1.0.weight", "0.bias", "1.0.bias")}
    assert found == {
        "0.weight": "f32[4/tp, 4]",
        "1.0.weight": "f32[4, 4/tp]",
        "0.bias": "f32[4]",
        "1.0.bias": "f32[4/tp]",
    }


def test_styles_know_embeddings() -> None:
    model = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 4))
    tokens = torch.arange(12).reshape(3, 4)
    rules = sl.rowwise("0", axis="tp") | sl.colwise("1", axis="tp")
    expansion = proved(model, tokens, mesh=sl.Mesh(tp=4), params=rules, loss=weighted)
    assert str(expansion.layout("0.weight")) == "f32[12/tp, 8]"
    columns = proved(model, tokens, mesh=sl.Mesh(tp=4), params=sl.colwise("0", axis="tp"), loss=weighted)
    assert str(columns.layout("0.weight")) == "f32[12, 8/tp]"


# --- outputs ---


def summed(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0)


def test_pending_outputs_are_resolved_or_kept() -> None:
    x = torch.rand(8, 6)
    resolved = proved(summed, x, mesh=sl.Mesh(dp=2, tp=3), inputs={"x": "b/dp d/tp"})
    assert [str(layout) for layout in resolved.output_layouts] == ["f32[6/tp]"]
    assert [step.name for step in resolved.steps if step.op == "resolve"] == ["resolve:out"]
    kept = proved(summed, x, mesh=sl.Mesh(dp=2, tp=3), inputs={"x": "b/dp d/tp"}, pending="keep")
    assert [str(layout) for layout in kept.output_layouts] == ["f32[6/tp]{sum: dp}"]
    assert not [step for step in kept.steps if step.op == "resolve"]


def test_outputs_can_be_asked_for_exactly() -> None:
    asked = proved(summed, torch.rand(8, 6), mesh=sl.Mesh(dp=2), batch="dp", outputs={"out": "d/dp"})
    assert [str(layout) for layout in asked.output_layouts] == ["f32[6/dp]"]
    assert [each.kind for each in asked.collectives] == ["reduce_scatter"]


def test_a_tangent_lies_as_its_output() -> None:
    expansion = proved(
        nn.Linear(4, 6), torch.rand(8, 4), mesh=sl.Mesh(dp=2, tp=3), batch="dp", params={"**": "o/tp ..."}
    )
    (tangent,) = [found for found in expansion.traced.inputs if found.role == "tangent"]
    assert str(expansion.layout(tangent.name)) == "f32[8/dp, 6/tp]"


def test_the_tangent_of_a_kept_sum_is_whole() -> None:
    x = torch.rand(8, 6, requires_grad=True)
    expansion = proved(summed, x, mesh=sl.Mesh(dp=2), batch="dp", pending="keep")
    assert str(expansion.layout("tangent(out)")) == "f32[6]"


def test_gradients_follow_their_parameters() -> None:
    params = {"weight": "o/dp i", "bias": "o/dp"}
    expansion = proved(nn.Linear(4, 8), torch.rand(8, 4), mesh=sl.Mesh(dp=4), batch="dp", params=params, loss=weighted)
    final = {
        output.name: str(layout)
        for output, layout in zip(expansion.traced.outputs, expansion.output_layouts, strict=True)
    }
    assert (final["grad(weight)"], final["grad(bias)"]) == ("f32[8/dp, 4]", "f32[8/dp]")


def test_a_pending_input_is_a_piece_of_a_sum() -> None:
    def root(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).abs().sqrt()

    expansion = proved(root, torch.rand(4, 3), mesh=sl.Mesh(tp=4), inputs={"x": [Partial()]})
    assert [each.kind for each in expansion.collectives] == ["all_reduce"]


# --- every form that a node can take ---


def masked_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@pytest.mark.parametrize("mask_layout", ["b/dp h t s", "b h/dp t s", "b h t/dp s", "..."])
def test_a_tensor_passed_by_keyword_is_brought_over(mask_layout: str) -> None:
    heads = [torch.rand(4, 4, 6, 8, requires_grad=True) for _ in range(3)]
    mask = torch.rand(4, 4, 6, 6)
    proved(masked_attention, *heads, mask, mesh=sl.Mesh(dp=2), inputs={"q": "b/dp ...", "mask": mask_layout})


def test_a_keyword_tensor_that_no_rule_knows_is_gathered_and_marked() -> None:
    def placed(x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return torch.bucketize(x, edges) + torch.searchsorted(edges, x, sorter=torch.arange(4))

    expansion = proved(placed, torch.rand(8), torch.linspace(0, 1, 4), mesh=sl.Mesh(dp=2), inputs=["b/dp", "e/dp"])
    (step,) = [step for step in expansion.steps if step.op.startswith("aten.searchsorted")]
    assert step.fallback is not None
    assert all(operand.need.is_replicated for operand in step.operands)


def test_constants_factories_lists_of_one_and_plain_outputs() -> None:
    def odd(x: torch.Tensor) -> dict[str, Any]:
        table = torch.tensor([1.0, 2.0, 3.0])
        (only,) = x.split(3, dim=1)
        places = torch.arange(3, dtype=x.dtype) + torch.full((3,), 0.5) + torch.zeros(3)
        return {"a": torch.cat([only], dim=1) * table + places, "b": None, "c": 7, "d": [x.unbind(1)[2]]}

    expansion = proved(odd, torch.rand(8, 3), mesh=sl.Mesh(dp=4), batch="dp")
    assert [str(layout) for layout in expansion.output_layouts if layout] == ["f32[8/dp, 3]", "f32[8/dp]"]


def test_outputs_that_are_none_keep_their_place() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.unused = nn.LayerNorm(4), nn.Parameter(torch.ones(2))
            self.norm.weight.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return weighted(self.norm(x))

    expansion = proved(Normed(), torch.rand(8, 4), mesh=sl.Mesh(dp=2), batch="dp", loss=lambda out: out)
    named = {
        output.name: layout for output, layout in zip(expansion.traced.outputs, expansion.output_layouts, strict=True)
    }
    assert named["grad(unused)"] is None
    assert str(named["grad(norm.bias)"]) == "f32[4]"
    assert "grad(norm.weight)" not in named


def test_buffers_are_placed_by_params_and_their_new_values_follow() -> None:
    model = nn.BatchNorm1d(4)
    expansion = proved(
        model, torch.rand(8, 4), mesh=sl.Mesh(dp=2), batch="dp", params={"running_*": "c/dp"}, loss=weighted
    )
    named = {
        output.name: str(layout)
        for output, layout in zip(expansion.traced.outputs, expansion.output_layouts, strict=True)
    }
    assert named["new(running_mean)"] == "f32[4/dp]"
    assert named["new(num_batches_tracked)"] == "i64[]"


def test_three_axes_and_both_orders_of_division() -> None:
    mesh = sl.Mesh(pp=2, dp=2, tp=2)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    params = {"0.weight": "o/tp/pp i", "0.bias": "o/tp", "2.weight": "o i/pp/tp"}
    proved(model, torch.rand(8, 8), mesh=mesh, batch="dp", params=params, loss=weighted)


# --- collectives ---


def test_a_collective_says_what_it_sends_by_the_ring_formula(gpt: sl.Expansion) -> None:
    divided = sl.expand(gpt.traced, gpt.mesh, batch="dp", params={"**.weight": "o/dp ..."})
    for expansion in (gpt, divided):
        for each in expansion.collectives:
            (axis,), n = each.axes, each.group_size
            trips = 2 if each.kind == "all_reduce" else 1
            assert n == gpt.mesh.axis_size(axis)
            assert each.sent_bytes_per_rank == trips * each.payload_bytes * (n - 1) // n
            assert each in expansion[each.step].collectives
    gathered = next(each for each in divided.collectives if each.kind == "all_gather")
    assert gathered.payload_bytes == gathered.need.nbytes(gathered.need.local_shape(0))
    reduced = next(each for each in divided.collectives if each.kind == "reduce_scatter")
    assert (reduced.reduce_op, reduced.payload_bytes) == ("sum", reduced.have.nbytes(reduced.have.local_shape(0)))


def test_a_moved_shard_is_an_all_to_all() -> None:
    expansion = proved(nn.Identity(), torch.rand(8, 6), mesh=sl.Mesh(dp=2), batch="dp", outputs={"out": "b d/dp"})
    assert [(each.kind, each.payload_bytes, each.sent_bytes_per_rank) for each in expansion.collectives] == [
        ("all_to_all", 96, 48)
    ]


def test_a_linear_without_bias_needs_one_all_reduce() -> None:
    model = nn.Linear(10, 10, bias=False)
    expansion = proved(model, torch.rand(4, 10), mesh=sl.Mesh(dp=2), batch="dp", loss=weighted)
    gradients = [each for each in expansion.collectives if each.step == "resolve:grad(weight)"]
    assert [each.kind for each in gradients] == ["all_reduce"]
    assert [each.step for each in expansion.collectives] == ["resolve:loss", "resolve:grad(weight)"]


def test_a_column_then_a_row_perceptron_reduces_once_each_way() -> None:
    model = nn.Sequential(nn.Linear(6, 18), nn.ReLU(), nn.Linear(18, 6))
    rules = sl.colwise("0", axis="tp") | sl.rowwise("2", axis="tp")
    expansion = proved(model, torch.rand(10, 12, 6), mesh=sl.Mesh(tp=2), params=rules, loss=weighted)
    assert [each.step for each in expansion.collectives.where(phase="forward")] == ["resolve:loss", "resolve:out"]
    assert list(expansion.collectives.where(phase="backward")) == []


def test_replicate_placements_say_nothing() -> None:
    expansion = proved(nn.Linear(4, 4), torch.rand(4, 4), mesh=sl.Mesh(dp=2), inputs=[[Replicate()]], loss=weighted)
    assert len(expansion.collectives) == 0


class Shadowed(nn.Module):
    """A module that is called as its operator is."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embedding(tokens) * 2


def test_a_module_is_found_also_where_a_node_has_its_name() -> None:
    expansion = sl.spmd_expand(Shadowed(), torch.arange(4), mesh=sl.Mesh(dp=2), batch="dp")
    names = ["embedding", "embedding_dense_backward", "resolve:grad(embedding.weight)"]
    assert [step.name for step in expansion["embedding"]] == names
    assert expansion["embedding_dense_backward"].name == "embedding_dense_backward"
    assert expansion.step("embedding").name == "embedding"


def test_an_expansion_is_its_steps() -> None:
    expansion = sl.spmd_expand(Shadowed(), torch.arange(4), mesh=sl.Mesh(dp=2), batch="dp")
    assert list(expansion) == list(expansion.steps)
    assert len(expansion) == len(expansion.steps)


def test_outputs_have_layouts_by_the_names_of_the_user() -> None:
    expansion = sl.spmd_expand(Shadowed(), torch.arange(4), mesh=sl.Mesh(dp=2), batch="dp")
    assert str(expansion.layout("out")) == "f32[4/dp, 4]"
    assert str(expansion.layout("grad(embedding.weight)")) == "f32[5, 4]"
    for name in ("out", "embedding.weight", "tokens"):
        with pytest.raises(sl.SpmdLabError, match=r"expansion\.layout\("):
            expansion[name]


def test_several_steps_print_a_line_each() -> None:
    expansion = sl.spmd_expand(Shadowed(), torch.arange(4), mesh=sl.Mesh(dp=2), batch="dp")
    found = expansion["embedding"]
    first, heading, *rows = repr(found).splitlines()
    assert first == "3 steps"
    assert heading.split() == ["step", "op", "phase", "gives", "communicates", "line"]
    assert [row.split()[0] for row in rows] == [step.name for step in found]
    assert found._repr_html_().count("<details>") >= 2
