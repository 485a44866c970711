"""The two halves of a program have all of it, once, and nothing that they do not need."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

import spmd_lab as sl
from spmd_lab.errors import RebuildError
from spmd_lab.run.halves import Halves, split
from tests.models.library import gpt2_with_dropout
from tests.models.zoo import ZOO

aten = torch.ops.aten


def halves_of(program: sl.Program) -> Halves:
    traced = program.expansion.traced
    tangents = {index for index, found in enumerate(traced.inputs) if found.role == "tangent"}
    gradients = {index for index, output in enumerate(traced.outputs) if output.role == "gradient"}
    return split(program.graph_module, tangents, gradients)


def operators(graph_module: fx.GraphModule) -> Counter[str]:
    """Calls by operator; what reduces in place is counted with what does not."""
    calls = [node for node in graph_module.graph.nodes if node.op == "call_function"]
    return Counter(str(node.target).replace("all_reduce_.", "all_reduce.") for node in calls)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_collectives_of_both_halves_are_those_of_the_program(name: str) -> None:
    specimen = ZOO[name]()
    traced = sl.trace(specimen.model, kwargs=specimen.kwargs)
    program = sl.expand(traced, sl.Mesh(dp=2, tp=2), batch="dp", params=specimen.rules).program
    halves = halves_of(program)
    assert operators(halves.forward) + operators(halves.backward) == operators(program.graph_module)
    waits = [operators(half)["_c10d_functional.wait_tensor.default"] for half in (halves.forward, halves.backward)]
    assert min(waits) > 0
    assert sum(waits) == len(program.expansion.collectives)


def test_both_halves_together_give_what_the_program_gives() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 3))
    program = sl.spmd_expand(model, torch.randn(4, 6), mesh=sl.Mesh(dp=1)).program
    values = [*(each.detach() for each in model.parameters()), torch.randn(4, 6), torch.randn(4, 3)]
    halves = halves_of(program)
    made = halves.forward(*values[:-1])
    found = (*made[: halves.results], *halves.backward([*made[halves.results :], values[-1]]))
    for one, other in zip(found, program.graph_module(*values), strict=True):
        assert torch.equal(one, other)


def traced(function: object) -> fx.GraphModule:
    return fx.symbolic_trace(function)  # type: ignore[arg-type]


def test_what_gradients_alone_need_is_computed_late_and_saved_early() -> None:
    def program(x, tangent):  # type: ignore[no-untyped-def]
        out = aten.relu.default(x)
        mask = aten.gt.Scalar(out, 0)
        large = aten.mul.Tensor(mask, 2.0)
        return out, aten.mul.Tensor(tangent, large)

    halves = split(traced(program), {1}, {1})
    assert operators(halves.forward) == {"aten.relu.default": 1}
    assert operators(halves.backward) == {"aten.gt.Scalar": 1, "aten.mul.Tensor": 2}
    assert halves.forward.graph.output_node().args[0][0] is halves.forward.graph.output_node().args[0][1]


def test_parts_of_a_tuple_are_saved_one_by_one() -> None:
    def program(x, w, tangent):  # type: ignore[no-untyped-def]
        norm = aten.native_layer_norm.default(x, [4], w, None, 1e-5)
        out, mean, rstd = norm[0], norm[1], norm[2]
        back = aten.native_layer_norm_backward.default(tangent, x, [4], mean, rstd, w, None, [True, True, False])
        return out, back[0], back[1]

    whole = traced(program)
    halves = split(whole, {2}, {1, 2})
    x, w, tangent = torch.randn(2, 4), torch.randn(4), torch.randn(2, 4)
    out, *saved = halves.forward(x, w)
    assert all(isinstance(each, torch.Tensor) for each in saved)
    for one, other in zip([out, *halves.backward([*saved, tangent])], whole(x, w, tangent), strict=True):
        assert torch.equal(one, other)


class Noisy(torch.autograd.Function):
    """Draws in its forward what only its backward reads, and once more there."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(torch.rand_like(x))
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * ctx.saved_tensors[0] + torch.rand_like(grad)


def noisy(x: torch.Tensor) -> torch.Tensor:
    torch.rand(3)
    return F.dropout(Noisy.apply(x), 0.5) * torch.rand_like(x)


@pytest.mark.parametrize("random", ["exact", "local"])
def test_a_draw_stays_where_it_was_and_is_made_once(random: str) -> None:
    x = torch.randn(4, 6, requires_grad=True)
    program = sl.spmd_expand(noisy, x, mesh=sl.Mesh(dp=1), batch="dp", random=random).program
    halves = halves_of(program)
    assert operators(halves.forward) + operators(halves.backward) == operators(program.graph_module)
    tangent = torch.randn(4, 6)
    torch.manual_seed(3)
    out, *saved = halves.forward(x.detach())
    (grad,) = halves.backward([*saved, tangent])
    torch.manual_seed(3)
    if random == "local":
        expected = program.graph_module(x.detach(), tangent)
    else:
        result = noisy(x)
        expected = (result, torch.autograd.grad(result, x, tangent)[0])
    assert torch.equal(out, expected[0])
    assert torch.equal(grad, expected[1])


def test_no_draw_of_a_model_is_moved_to_its_backward() -> None:
    specimen = gpt2_with_dropout()
    program = sl.expand(specimen.trace(), sl.Mesh(dp=2, tp=2), batch="dp", params=specimen.rules).program
    halves = halves_of(program)
    drawing = ("aten.native_dropout.default", "aten.bernoulli_.float", "aten.rand_like.default")
    whole, first, second = (operators(each) for each in (program.graph_module, halves.forward, halves.backward))
    assert sum(whole[each] for each in drawing) >= 7
    assert [first[each] for each in drawing] == [whole[each] for each in drawing]
    assert not any(second[each] for each in drawing)


def test_what_is_overwritten_after_the_forward_is_copied_first() -> None:
    def program(count, tangent):  # type: ignore[no-untyped-def]
        return aten.add.Tensor(count, 1.0), aten.mul.Tensor(tangent, count)

    halves = split(traced(program), {1}, {1}, written={0})
    count = torch.tensor(2.0)
    new, saved = halves.forward(count)
    count.copy_(new)
    assert halves.backward([saved, torch.tensor(10.0)]) == (torch.tensor(20.0),)


def test_constants_are_in_both_halves() -> None:
    class Program(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.tensor([1.0, 2.0])

        def forward(self, x: torch.Tensor, tangent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * self.table, tangent * self.table

    halves = split(traced(Program()), {1}, {1})
    assert halves.forward(torch.ones(2))[0].tolist() == [1.0, 2.0]
    assert len(halves.forward(torch.ones(2))) == 1
    assert halves.backward([torch.ones(2)])[0].tolist() == [1.0, 2.0]


def test_a_result_that_needs_a_tangent_is_refused() -> None:
    with pytest.raises(RebuildError, match="an output of the forward depends on tangent"):
        split(traced(lambda x, tangent: (x + tangent, tangent)), {1}, {1})
