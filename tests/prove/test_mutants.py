"""A right program is proved; a program with one mistake is not, and the step of the mistake is the first named."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
import torch

import spmd_lab as sl
from spmd_lab.prove.layouts import check_graph
from tests.prove.mutants import (
    Altered,
    altered,
    aten,
    attention,
    bypass,
    c10d,
    named,
    names,
    perceptron,
    step_of,
    twice,
    uneven,
    with_argument,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

ALL_REDUCES = range(8)
CHANGES = {
    "dropped": bypass,
    "doubled": twice,
    "summed or averaged": lambda name: lambda graph: trade(graph, name, {"sum": "avg", "avg": "sum"}),
    "maximum": lambda name: with_argument(name, 1, "max"),
}


def trade(graph: fx.Graph, name: str, kinds: dict[str, str]) -> None:
    """Let a reduction be of another kind."""
    node = named(graph, name)
    node.update_arg(1, kinds[str(node.args[1])])


@pytest.mark.parametrize("build", [perceptron, attention, uneven])
def test_a_right_program_is_proved(build: Callable[[], sl.Program]) -> None:
    report = build().verify()
    report.raise_if_wrong()
    assert report.ok
    assert report.divergences == ()
    assert report.values_checked >= report.steps_checked == len(build().expansion.steps)
    assert report.largest is not None
    assert 0 < report.largest.scaled_error < report.largest.tolerance / 4


def fault_in(program: sl.Program, name: str, change: Callable[[fx.Graph], None]) -> Altered:
    """Make one node wrong, and hold the proof to naming its step."""
    wrong = altered(program, change)
    report = wrong.verify()
    assert not report.ok
    assert report.first_divergence is not None
    assert report.first_divergence.step is program.expansion.step(step_of(program, name))
    return wrong


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("position", ALL_REDUCES)
def test_a_wrong_reduction_is_found_at_its_step(position: int, how: str) -> None:
    program = perceptron()
    reductions = names(program, c10d.all_reduce.default)
    assert len(reductions) == len(ALL_REDUCES)
    name = reductions[position]
    wrong = fault_in(program, name, CHANGES[how](name))
    assert {each.step for each in check_graph(program.expansion, wrong.graphs[0].graph)} == {step_of(program, name)}


@pytest.mark.parametrize("position", ALL_REDUCES)
def test_a_reduction_over_the_wrong_axis_is_found_at_its_step(position: int) -> None:
    program = perceptron()
    name = names(program, c10d.all_reduce.default)[position]
    axis = named(program.graph_module.graph, name).args[2]
    wrong = fault_in(program, name, with_argument(name, 2, {"dp": "tp", "tp": "dp"}[str(axis)]))
    assert next(iter(check_graph(program.expansion, wrong.graphs[0].graph))).step == step_of(program, name)


@pytest.mark.parametrize("how", CHANGES)
def test_a_reduction_of_noise_is_found(how: str) -> None:
    """The gradient of k.bias is zero in exact arithmetic: no tolerance relative to the gradient itself would do."""
    program = attention()
    (name,) = names(program, c10d.all_reduce.default, "resolve:grad(k.bias)")
    report = program.verify()
    (gradient,) = [each for each in report.outputs if each.name == "grad(k.bias)"]
    assert gradient.ok
    fault_in(program, name, CHANGES[how](name))


@pytest.mark.parametrize("how", CHANGES)
def test_a_reduction_of_nothing_but_zeros_is_found(how: str) -> None:
    """Where every number is zero, only the layouts show that a reduction is missing."""
    traced = sl.trace(torch.nn.Linear(4, 4), torch.zeros(8, 4))
    program = sl.rebuild(sl.expand(traced, sl.Mesh(dp=2), batch="dp"))
    (name,) = names(program, c10d.all_reduce.default, "resolve:grad(weight)")
    first = altered(program, CHANGES[how](name)).verify().first_divergence
    assert first is not None
    assert first.step is program.expansion.step("resolve:grad(weight)")
    assert first.index is None
    assert "pending" in f"{first.expected} {first.got}"


def test_a_dropped_reduction_names_rank_index_and_values() -> None:
    program = perceptron()
    (name,) = names(program, c10d.all_reduce.default, "resolve:grad(up.bias)")
    first = altered(program, bypass(name)).verify().first_divergence
    assert first is not None
    assert (first.value, first.rank) == ("resolve:grad(up.bias)", 0)
    right = program.expansion.traced.reference.run([value.detach() for value in program.expansion.traced.values])
    outputs = [output.name for output in program.expansion.traced.outputs]
    gradient = right[outputs.index("grad(up.bias)")]
    assert gradient is not None
    assert first.index is not None
    assert first.expected == pytest.approx(gradient[first.index].item(), rel=1e-4)
    assert first.got != pytest.approx(first.expected, rel=1e-2)


def test_a_missing_scale_is_found() -> None:
    """A bias that is added on every rank of a pending sum must be divided among them."""
    program = perceptron()
    expansion = program.expansion
    (name,) = names(program, aten.div.Tensor, "addmm_1")
    first = altered(program, bypass(name)).verify().first_divergence
    assert first is not None
    assert first.step is expansion.step("addmm_1")
    assert first.index is not None
    bias = expansion.traced.values[[each.name for each in expansion.traced.inputs].index("down.bias")]
    excess = float(str(first.got)) - float(str(first.expected))
    assert excess == pytest.approx(bias[first.index[1]].item(), rel=1e-3)


def test_a_wrong_slice_is_found_with_the_rank_that_takes_it() -> None:
    program = perceptron()
    name, *_ = names(program, aten.slice.Tensor, "mul")
    report = altered(program, with_argument(name, 2, 0)).verify()
    assert report.first_divergence is not None
    assert report.first_divergence.step is program.expansion.step("mul")
    second = altered(program, lambda graph: shift(graph, name), ranks=[2, 3]).verify().first_divergence
    assert second is not None
    assert second.step is program.expansion.step("mul")
    assert second.rank == 2
    assert second.index is not None
    assert second.index[0] >= 4


def shift(graph: fx.Graph, name: str) -> None:
    """Let a slice take the rows of the other half."""
    node = named(graph, name)
    start, stop = (int(str(each)) for each in node.args[2:4])
    other = 0 if start else stop
    node.args = (*node.args[:2], other, other + stop - start)


@pytest.mark.parametrize("build", [perceptron, uneven])
def test_the_program_of_rank_0_run_everywhere_is_found(build: Callable[[], sl.Program]) -> None:
    program = build()
    expansion = program.expansion
    report = Altered(expansion, [program.graph_module] * expansion.mesh.size).verify()
    assert not report.ok
    assert report.first_divergence is not None
    assert report.first_divergence.rank != 0
    assert report.first_divergence.step is not None
    ranks_differ = [
        step.name
        for step in expansion.steps
        if any(str(step.local_graph_for(rank).graph) != str(step.local_graph.graph) for rank in range(4))
    ]
    assert report.first_divergence.step.name in ranks_differ


def test_a_rank_that_cannot_run_its_program_is_named() -> None:
    program = uneven()
    name = names(program, aten.addmm.default)[0]
    report = altered(program, with_argument(name, 2, "x"), ranks=[3]).verify()
    first = report.first_divergence
    assert first is not None
    assert first.step is program.expansion.step(step_of(program, name))
    assert first.rank == 3
    assert "rank 3 cannot run aten.addmm.default" in first.reason
    assert all(not output.ok for output in report.outputs)


def test_a_stale_value_is_found_at_the_step_that_reads_it() -> None:
    program = perceptron()
    (name,) = names(program, aten.gelu_backward.default)
    (other,) = names(program, aten.gelu.default)
    first = fault_in(program, name, with_argument(name, 1, other)).verify().first_divergence
    assert first is not None
    assert (first.value, first.layout) == ("gelu_backward", program.expansion.layout("gelu_backward"))


def test_outputs_in_the_wrong_order_are_found() -> None:
    program = perceptron()

    def swap(graph: fx.Graph) -> None:
        output = next(iter(reversed(graph.nodes)))
        values = list(output.args[0])  # type: ignore[arg-type]
        values[0], values[1] = values[1], values[0]
        output.args = (tuple(values),)

    report = altered(program, swap).verify()
    assert [each.name for each in report.outputs if not each.ok] == [each.name for each in report.outputs[:2]]
    assert report.first_divergence is not None
    assert "another value" in report.first_divergence.reason


def test_each_wrong_step_is_named_and_no_right_one() -> None:
    """Steps are judged on what they were given: an early error does not show again in what follows from it."""
    program = perceptron()
    gelu, last = names(program, aten.gelu.default)[0], names(program, c10d.all_reduce.default)[-1]

    def change(graph: fx.Graph) -> None:
        halve(graph, gelu)
        bypass(last)(graph)

    wrong = altered(program, change)
    found = {each.step.name for each in wrong.verify().divergences if each.step is not None}
    assert found == {step_of(program, gelu), step_of(program, last)}


def halve(graph: fx.Graph, name: str) -> None:
    """Let an operator return half of what it should, under its own name."""
    node = named(graph, name)
    with graph.inserting_after(node):
        half = graph.call_function(aten.mul.Tensor, (node, 0.5))
    half.meta = dict(node.meta)
    del node.meta["spmd_value"]
    node.replace_all_uses_with(half, delete_user_cb=lambda user: user is not half)


# --- mistakes in what the steps claim -----------------------------------------------------------


@dataclass
class Claim:
    """A step of which a claim is changed."""

    program: sl.Program
    step: sl.Step

    def with_output(self, text: str) -> Altered:
        expansion = self.program.expansion
        (before,) = self.step.outputs
        assert before is not None
        claimed = sl.Layout.parse(text, expansion.mesh, before.global_shape, before.dtype)
        steps = tuple(replace(step, outputs=(claimed,)) if step is self.step else step for step in expansion.steps)
        changed = replace(expansion, steps=steps, layouts={**expansion.layouts, self.step.name: claimed})
        graphs = [self.program.for_rank(rank) for rank in range(expansion.mesh.size)]
        return Altered(changed, graphs)


def test_a_sum_over_a_divided_dim_that_claims_to_be_whole_is_found_even_if_it_is_zero() -> None:
    traced = sl.trace(lambda x: x.sum(), torch.zeros(8, 4), backward=False)
    program = sl.rebuild(sl.expand(traced, sl.Mesh(dp=2), batch="dp", pending="keep"))
    (step,) = program.expansion.steps
    assert program.verify().ok
    changed = Claim(program, step).with_output("")
    first = changed.verify().first_divergence
    assert first is not None
    assert first.step is not None
    assert first.step.name == step.name
    assert first.reason == "it sums over a dim of x that is divided over dp"


def test_a_step_that_takes_a_value_otherwise_than_it_is_is_found() -> None:
    program = perceptron()
    expansion = program.expansion
    step = expansion.step("addmm_1")
    first, *others = step.operands
    wrong = replace(first, have=sl.Layout.parse("o/dp", expansion.mesh, (8,), torch.float32))
    steps = tuple(replace(each, operands=(wrong, *others)) if each is step else each for each in expansion.steps)
    graphs = [program.for_rank(rank) for rank in range(4)]
    report = Altered(replace(expansion, steps=steps), graphs).verify()
    assert "a step does not take a value as it is" in {each.reason for each in report.divergences}


# --- parameters that rest divided ---------------------------------------------------------------


def at_rest(value: float = 1.0) -> sl.Program:
    """Two square matrices that rest divided, times what the input and they are worth."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Tanh(), torch.nn.Linear(8, 8, bias=False))
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(value)
    traced = sl.trace(model, torch.randn(8, 8) * value)
    return sl.rebuild(sl.expand(traced, sl.Mesh(dp=2), batch="dp", stored=sl.fsdp("dp")))


GATHERS = ("gather:0.weight", "gather:2.weight", "regather:2.weight")


@pytest.mark.parametrize("step", GATHERS)
def test_a_missing_gather_is_found(step: str) -> None:
    program = at_rest()

    def change(graph: fx.Graph) -> None:
        (wait,) = [node for node in graph.nodes if node.meta.get("spmd_value") == step]
        wait.replace_all_uses_with(named(graph, step.partition(":")[2].replace("0.", "_0_").replace("2.", "_2_")))

    wrong = altered(program, change)
    readers = [each.name for each in program.expansion.steps if step in [operand.name for operand in each.operands]]
    assert wrong.verify().first_divergence.step.name in (step, *readers)
    assert {each.step for each in check_graph(program.expansion, wrong.graphs[0].graph)} <= {step, *readers}


@pytest.mark.parametrize("step", GATHERS)
@pytest.mark.parametrize("value", [1.0, 0.0], ids=["numbers", "zeros"])
def test_another_parameter_that_is_gathered_is_found(step: str, value: float) -> None:
    program = at_rest(value)
    other = "_2_weight" if "0.weight" in step else "_0_weight"

    def change(graph: fx.Graph) -> None:
        first = next(node for node in graph.nodes if node.meta.get("spmd_step") == step)
        first.update_arg(0, named(graph, other))

    assert altered(program, change).verify().first_divergence.step.name == step


@pytest.mark.parametrize("value", [1.0, 0.0], ids=["numbers", "zeros"])
def test_a_gradient_that_is_cut_and_not_scattered_is_found(value: float) -> None:
    program = at_rest(value)
    (name,) = names(program, c10d.reduce_scatter_tensor.default, "resolve:grad(0.weight)")

    def change(graph: fx.Graph) -> None:
        node = named(graph, name)
        with graph.inserting_before(node):
            cut = graph.call_function(aten.slice.Tensor, (node.args[0], 0, 0, 4))
        cut.meta = {key: value for key, value in node.meta.items() if key != "spmd_collective"}
        node.replace_all_uses_with(cut)
        graph.erase_node(node)

    assert altered(program, change).verify().first_divergence.step.name == "resolve:grad(0.weight)"
