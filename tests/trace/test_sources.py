"""Every operator, forward and backward, knows the line of the user's code that it comes from."""

from __future__ import annotations

import doctest
import linecache

import pytest
import torch
from torch import nn
from torch.nn import functional

from spmd_lab import Source, TracedGraph, trace
from tests.trace.programs import GPT, Normed


def lines(traced: TracedGraph, phase: str | None = None) -> set[str]:
    return {
        source.code
        for node in traced.op_nodes
        if phase in (None, traced.phase(node)) and (source := traced.source(node))
    }


def test_every_node_of_a_gpt_has_its_line() -> None:
    tokens, targets = torch.randint(32, (2, 8)), torch.randint(32, (2, 8))
    traced = trace(GPT(), tokens, loss=lambda out: functional.cross_entropy(out.flatten(0, 1), targets.flatten()))
    sources = [traced.source(node) for node in traced.op_nodes]
    assert len(sources) > 150
    assert all(source is not None for source in sources)
    files = {source.place.partition(":")[0] for source in sources if source}
    assert files == {"programs.py", "test_sources.py"}
    assert {traced.phase(node) for node in traced.op_nodes} == {"forward", "backward"}
    first = traced.source(traced.op_nodes[0])
    assert isinstance(first, Source)
    assert (first.function, first.module) == ("forward", "embed")
    assert first.code == "x = self.embed(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))"
    assert linecache.getline(first.file, first.line).strip() == first.code


def test_the_backward_of_a_line_has_that_line_and_its_module() -> None:
    traced = trace(GPT(), torch.randint(32, (2, 8)), loss=lambda out: out.square().mean())
    by_phase: dict[str, set[tuple[str, str]]] = {"forward": set(), "backward": set()}
    for node in traced.op_nodes:
        source = traced.source(node)
        assert source is not None
        by_phase[traced.phase(node)].add((source.code, source.module))
    assert by_phase["backward"] <= by_phase["forward"]
    assert ("return x + self.down(functional.gelu(self.up(x)))", "blocks.1.down") in by_phase["backward"]
    gelu = next(node for node in traced.op_nodes if "gelu_backward" in str(node.target))
    source = traced.source(gelu)
    assert source is not None
    assert (source.code, source.module) == ("return x + self.down(functional.gelu(self.up(x)))", "blocks.1")


def test_gradients_that_are_added_up_have_the_line_of_what_they_add() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        a = x.sin()
        b = a.exp()
        c = a.tanh()
        return (b * c).sum()

    traced = trace(program, torch.randn(4, requires_grad=True), loss=lambda out: out)
    (add,) = [node for node in traced.op_nodes if str(node.target) == "aten.add.Tensor"]
    source = traced.source(add)
    assert source is not None
    assert traced.phase(add) == "backward"
    assert source.code in {str(traced.source(each)).partition(": ")[2] for each in add.all_input_nodes}
    assert source.code in {"b = a.exp()", "c = a.tanh()"}


def test_the_last_line_of_the_forward_does_not_leak_into_the_backward() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        z = y.exp()
        return z.tanh()

    traced = trace(program, torch.randn(4, requires_grad=True))
    cos = next(node for node in traced.op_nodes if "cos" in str(node.target))
    assert str(traced.source(cos)).endswith("y = x.sin()")


def test_a_sequential_has_the_line_that_traces_it() -> None:
    traced = trace(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), torch.randn(2, 3))
    assert lines(traced) == {"traced = trace(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), torch.randn(2, 3))"}
    assert {traced.source(node).module for node in traced.op_nodes} == {"0", "1"}  # type: ignore[union-attr]


def test_constants_mutations_and_custom_functions_have_lines() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    def program(x: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
        held[0].copy_(x[0].detach())
        y = x + torch.tensor([1.0, 2.0, 3.0])
        return Twice.apply(y) * held

    traced = trace(program, torch.randn(4, 3, requires_grad=True), torch.randn(4, 3))
    assert None not in [traced.source(node) for node in traced.op_nodes]
    assert lines(traced) >= {"held[0].copy_(x[0].detach())", "y = x + torch.tensor([1.0, 2.0, 3.0])"}
    assert lines(trace(Normed(), torch.randn(4, 3)), "backward") == {"return self.fc(self.bn(x))"}


def test_a_module_that_is_closed_over_has_its_path() -> None:
    layer = nn.Sequential(nn.Linear(3, 2))
    traced = trace(lambda x: layer(x), torch.randn(4, 3))
    assert {traced.source(node).module for node in traced.op_nodes} == {"layer.0"}  # type: ignore[union-attr]


def test_code_that_is_in_no_file() -> None:
    """A cell of a notebook is known to linecache alone, and so is a doctest."""
    code = "def program(x):\n    y = x * 2\n    return y.exp()\n"
    name = "/tmp/kernel_1/1234.py"
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    scope: dict[str, object] = {}
    exec(compile(code, name, "exec"), scope)
    traced = trace(scope["program"], torch.randn(3, requires_grad=True))  # type: ignore[arg-type]
    assert lines(traced) == {"y = x * 2", "return y.exp()"}
    assert str(traced.source("mul")) == "1234.py:2: y = x * 2"


def test_code_in_a_doctest() -> None:
    text = """
    >>> import torch
    >>> from spmd_lab import trace
    >>> def program(x):
    ...     return x.sin()
    >>> traced = trace(program, torch.ones(3))
    >>> traced.source("sin").code
    'return x.sin()'
    """
    test = doctest.DocTestParser().get_doctest(text, {}, "a doctest", None, 0)
    assert doctest.DocTestRunner(verbose=False).run(test).failed == 0


def test_the_source_of_a_placeholder_is_none() -> None:
    traced = trace(nn.Linear(3, 2), torch.randn(4, 3))
    assert traced.source("weight") is None
    assert traced.source(traced.graph_module.graph.output_node()) is None


@pytest.mark.parametrize("backward", [True, False])
def test_an_operator_that_functionalisation_makes_has_a_line(backward: bool) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = y * 2
        z[:, 0] = x[:, 1]
        z.t().mul_(3)
        return z.clamp_(min=0)

    traced = trace(program, torch.randn(4, 3), torch.randn(4, 3, requires_grad=True), backward=backward)
    assert None not in [traced.source(node) for node in traced.op_nodes]
    assert lines(traced) <= {"z = y * 2", "z[:, 0] = x[:, 1]", "z.t().mul_(3)", "return z.clamp_(min=0)"}


def test_cells_of_notebooks_have_short_names_that_follow_from_their_text() -> None:
    for file, shown in {
        "/tmp/ipykernel_815/2320005705.py": "cell2320",
        "/tmp/ipykernel_9/2320005705.py": "cell2320",
        "<ipython-input-3-cda23c8372fe>": "cellcda2",
        "C:\\models\\gpt.py": "gpt.py",
    }.items():
        assert Source(file, 7, "x", "f", "").place == f"{shown}:7"
