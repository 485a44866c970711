"""The proof on real ranks: the same judges, what real processes hold."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

import spmd_lab as sl
from spmd_lab.errors import ArgumentError
from tests.run.saved_cases import program_of


class Dropping(nn.Module):
    """Statistics that are written into, numbers that are drawn, a pending sum."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.dropout(self.norm(self.up(x)), 0.25))


def dropping() -> sl.Program:
    loss = lambda out: out.square().mean()  # noqa: E731
    return sl.spmd_expand(Dropping(), torch.randn(7, 6), mesh=sl.Mesh(dp=2), loss=loss, batch="dp").program


@pytest.mark.parametrize("program", [dropping, lambda: program_of(sl.Mesh(tp=2))], ids=["batch", "uneven rows"])
def test_real_ranks_hold_what_simulated_ones_do(ranks: sl.Ranks, program: object) -> None:
    made: sl.Program = program()  # type: ignore[operator]
    real, simulated = made.verify(ranks=ranks), made.verify()
    assert real.ok, real
    assert real.values_checked == simulated.values_checked > 10
    assert real.steps_checked == simulated.steps_checked
    assert [each.name for each in real.outputs] == [each.name for each in simulated.outputs]


def without_reduction(graph: fx.GraphModule) -> None:
    """Hand on the pending pieces of the loss as if they were the sum."""
    found = [each for each in graph.graph.nodes if each.target is torch.ops._c10d_functional.all_reduce.default]
    (wait,) = found[0].users
    wait.replace_all_uses_with(found[0].args[0])


def test_a_wrong_program_is_wrong_on_real_ranks_too(ranks: sl.Ranks) -> None:
    broken = dropping().rewrite(without_reduction)
    real, simulated = broken.verify(ranks=ranks), broken.verify()
    assert not real.ok
    assert real.first_divergence is not None
    assert simulated.first_divergence is not None
    assert str(real.first_divergence) == str(simulated.first_divergence)


def too_long(graph: fx.GraphModule) -> None:
    """View a tensor as one that it is too short for."""
    node = next(each for each in graph.graph.nodes if each.target is torch.ops.aten.addmm.default)
    with graph.graph.inserting_after(node):
        view = graph.graph.call_function(torch.ops.aten.view.default, (node, [1000]))
    view.meta = {key: value for key, value in node.meta.items() if key != "spmd_value"}


def test_a_step_that_cannot_run_is_a_divergence(ranks: sl.Ranks) -> None:
    report = dropping().rewrite(too_long).verify(ranks=ranks)
    assert not report.ok
    found = report.first_divergence
    assert found is not None
    assert found.step is not None
    assert found.step.name == "addmm"
    assert "raised RuntimeError" in found.reason


def test_another_number_of_ranks_is_refused(ranks: sl.Ranks) -> None:
    with pytest.raises(ArgumentError, match=r"the program is for Mesh\(tp=4\), there are 2 ranks"):
        program_of(sl.Mesh(tp=4)).verify(ranks=ranks)


def row_by_row(graph: fx.GraphModule) -> None:
    """Let shards be exchanged as rows, with every argument given by name."""
    exchange, aten = torch.ops._dtensor.shard_dim_alltoall.default, torch.ops.aten
    for node in graph.graph.find_nodes(op="call_function", target=exchange):
        shard, _, dim, axis = node.args
        with graph.graph.inserting_before(node):
            cut = graph.graph.call_function(aten.chunk.default, (shard, 2, dim))
            blocks = graph.graph.call_function(aten.cat.default, (cut, 0))
            sizes = {"output_split_sizes": [4, 4], "input_split_sizes": [4, 4]}
            rows = graph.graph.call_function(
                torch.ops._c10d_functional.all_to_all_single.default,
                kwargs={"input": blocks, **sizes, "group_name": axis},
            )
        node.replace_all_uses_with(rows)
        graph.graph.erase_node(node)


def test_rows_are_exchanged_for_real(ranks: sl.Ranks) -> None:
    moved = sl.spmd_expand(
        lambda x: x.clone(), torch.randn(8, 6), mesh=sl.Mesh(dp=2), inputs={"x": "b/dp d"}, outputs={"out": "b d/dp"}
    )
    program = moved.program.rewrite(row_by_row)
    assert [(each.kind, each.axes, each.sent_bytes_per_rank) for each in program.collectives] == [
        ("all_to_all", ("dp",), 48)
    ]
    program.verify().raise_if_wrong()
    program.verify(ranks=ranks).raise_if_wrong()
