"""The backward computes again what a checkpoint does not keep, when it comes to it, and no draw or message twice."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.distributed.tensor import Shard
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import spmd_lab as sl
from tests.run import training_cases as cases
from tests.run.test_halves import halves_of, operators

if TYPE_CHECKING:
    from collections.abc import Callable

    from spmd_lab.run.halves import Halves
    from tests.run.pool import RankPool

WIDTH, DEPTH, ROWS = 8, 3, 16
aten = torch.ops.aten


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), 0.3)


def inside_another(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda y: checkpoint(block, y, use_reentrant=False) * 1.5, x, use_reentrant=False)


def but_for_products(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    contexts = partial(create_selective_checkpoint_contexts, [aten.addmm.default, aten.mm.default])
    return checkpoint(block, x, use_reentrant=False, context_fn=contexts)


RUNS: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "kept": lambda block, x: block(x),
    "checkpointed": partial(checkpoint, use_reentrant=False),
    "inside another": inside_another,
    "but for products": but_for_products,
}
KEPT = {"checkpointed": 2, "inside another": 2, "but for products": 3}
"""How many values are kept of each block: what enters it, the mask of its dropout, and the products it names."""


class Stack(nn.Module):
    def __init__(self, run: str) -> None:
        super().__init__()
        self.blocks, self.run = nn.ModuleList(Block() for _ in range(DEPTH)), RUNS[run]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.run(block, x)
        return x


def program_of(module: nn.Module, mesh: sl.Mesh, **options: Any) -> sl.Program:
    rules = sl.colwise("**.up", axis="tp") | sl.rowwise("**.down", axis="tp") if "tp" in mesh.axes else {}
    expansion = sl.spmd_expand(module, torch.randn(ROWS, WIDTH), mesh=mesh, batch="dp", params=rules, **options)
    return expansion.program.rewrite("lean", "share", "overlap", "bucket")


def saved(halves: Halves) -> list[fx.Node]:
    """What is kept beside the parameters."""
    returned = halves.forward.graph.output_node().args[0]
    assert isinstance(returned, tuple)
    return [node for node in returned[halves.results :] if not node.name.startswith("blocks")]


@pytest.mark.parametrize("mesh", [sl.Mesh(dp=1), sl.Mesh(dp=2, tp=2)], ids=str)
@pytest.mark.parametrize("run", KEPT)
def test_of_a_checkpoint_only_that_is_kept_which_is_not_computed_again(run: str, mesh: sl.Mesh) -> None:
    program = program_of(Stack(run), mesh)
    halves = halves_of(program)
    assert len(saved(halves)) == KEPT[run] * DEPTH
    once, twice = operators(program.graph_module), operators(halves.forward) + operators(halves.backward)
    again = twice - once
    assert again["aten.native_layer_norm.default"] == again["aten.gelu.default"] == DEPTH
    assert again["aten.addmm.default"] == (0 if run == "but for products" else DEPTH)
    assert not any("c10d" in each or "dropout" in each or "rand" in each for each in again)


def test_a_block_is_computed_again_when_the_backward_comes_to_it() -> None:
    halves = halves_of(program_of(Stack("checkpointed"), sl.Mesh(dp=2, tp=2)))
    copied = [node for node in halves.backward.graph.nodes if "checkpoint" in node.meta and node.op == "call_function"]
    assert len(copied) > DEPTH
    order = list(dict.fromkeys(node.meta["checkpoint"] for node in copied))
    assert len(order) == DEPTH
    assert order == sorted(order, reverse=True)


@pytest.mark.parametrize("run", RUNS)
def test_numbers_are_those_of_eager_pytorch(run: str) -> None:
    module = Stack(run)
    halves = halves_of(program_of(module, sl.Mesh(dp=1)))
    x, tangent = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
    parameters = list(module.parameters())
    torch.manual_seed(3)
    out, *kept = halves.forward(*(each.detach() for each in parameters), x)
    gradients = halves.backward([*kept, tangent])
    torch.manual_seed(3)
    expected = module(x)
    torch.testing.assert_close(out, expected.detach())
    for found, wanted in zip(gradients, torch.autograd.grad(expected, parameters, tangent), strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_trace_marks_checkpoints_and_says_who_keeps_the_promise() -> None:
    traced = sl.trace(Stack("checkpointed"), torch.randn(ROWS, WIDTH))
    marks = [node.meta.get("checkpoint") for node in traced.op_nodes if node.meta["phase"] == "forward"]
    assert len(set(marks)) == DEPTH
    assert not any("checkpoint" in node.meta for node in traced.op_nodes if node.meta["phase"] == "backward")
    assert len(traced.notes) == 1
    assert "recomputed by sl.distribute" in repr(traced)


def test_what_is_computed_again_reads_the_parameters_that_the_backward_gathers() -> None:
    program = program_of(Stack("checkpointed"), sl.Mesh(dp=4), stored={"**.weight": [Shard(0)]})
    halves = halves_of(program)
    assert len(saved(halves)) == KEPT["checkpointed"] * DEPTH
    again = operators(halves.forward) + operators(halves.backward) - operators(program.graph_module)
    assert again["aten.addmm.default"] == DEPTH
    assert not any("c10d" in each for each in again)


@pytest.mark.parametrize("axis", ["dp", "tp"])
def test_a_module_with_checkpoints_trains_on_ranks(two_ranks: RankPool, axis: str) -> None:
    two_ranks.run(cases.checkpointed, axis)
