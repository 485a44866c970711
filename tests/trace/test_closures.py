"""Tensors and modules that a program brings along become named inputs, never constants."""

from __future__ import annotations

import functools
import sys
import types

import pytest
import torch
from torch import nn
from torch.nn import functional

from spmd_lab import TracedGraph, trace
from spmd_lab.errors import TraceError
from tests.trace.programs import check, names, output_names

LAYER = nn.Linear(3, 2)
SCALE = torch.full((2,), 1.5)
TARGETS = torch.randn(4, 2)
WEIGHT = nn.Parameter(torch.randn(3, 2))
HELD = {"layers": [nn.Linear(3, 2)], "shift": torch.ones(2)}


def helper(out: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(out * SCALE, TARGETS)


def brought(traced: TracedGraph) -> list[tuple[str, str]]:
    """Name and role of what was not passed, and has no place in the graph as a constant."""
    assert not [node for node in traced.graph_module.graph.nodes if node.op == "get_attr"]
    return [(each.name, each.role) for each in traced.inputs if each.closure]


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(4, 3)


def test_a_cell(x: torch.Tensor) -> None:
    w = torch.randn(3, 2, requires_grad=True)
    traced = check(trace(lambda x: x @ w, x))
    assert brought(traced) == [("w", "input")]
    assert output_names(traced) == ["out", "grad(w)"]
    assert traced.values[1] is w


def test_a_parameter_in_a_cell_is_a_parameter(x: torch.Tensor) -> None:
    w = nn.Parameter(torch.randn(3, 2))
    assert brought(check(trace(lambda x: x @ w, x))) == [("w", "parameter")]


def test_globals_as_in_a_notebook(x: torch.Tensor) -> None:
    traced = check(trace(lambda x: LAYER(x), x, loss=lambda out: functional.mse_loss(out * SCALE, TARGETS)))
    assert brought(traced) == [
        ("LAYER.weight", "parameter"), ("LAYER.bias", "parameter"), ("SCALE", "input"), ("TARGETS", "input"),
    ]  # fmt: skip
    assert output_names(traced) == ["loss", "out", "grad(LAYER.weight)", "grad(LAYER.bias)"]


def test_what_a_helper_reaches(x: torch.Tensor) -> None:
    assert brought(check(trace(lambda x: x @ WEIGHT, x, loss=helper))) == [
        ("WEIGHT", "parameter"), ("SCALE", "input"), ("TARGETS", "input"),
    ]  # fmt: skip


def test_nested_functions_and_lambdas(x: torch.Tensor) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        def inner(y: torch.Tensor) -> torch.Tensor:
            return (lambda z: z * SCALE)(y @ WEIGHT)

        return inner(x)

    assert brought(check(trace(program, x))) == [("WEIGHT", "parameter"), ("SCALE", "input")]


def test_defaults(x: torch.Tensor) -> None:
    shift, scale = torch.ones(3), torch.full((3,), 2.0)

    def program(x: torch.Tensor, by: torch.Tensor = shift, *, scaled: torch.Tensor = scale) -> torch.Tensor:
        return x * scaled + by

    assert brought(check(trace(program, x))) == [("by", "input"), ("scaled", "input")]
    assert names(check(trace(program, x, shift + 1))) == ["x", "by", "scaled"]


def test_a_partial(x: torch.Tensor) -> None:
    bound = functools.partial(lambda a, b, c: a @ b + c, x, c=torch.ones(2))
    traced = check(trace(bound, torch.randn(3, 2)))
    assert names(traced) == ["b", "bound[0]", "c"]


def test_a_partial_of_a_module(x: torch.Tensor) -> None:
    assert names(check(trace(functools.partial(LAYER, input=x)))) == ["weight", "bias", "input", "tangent(out)"]


def test_bound_methods(x: torch.Tensor) -> None:
    class Steps:
        def __init__(self) -> None:
            self.layer = nn.Linear(3, 2)
            self.scale = torch.ones(2)

        def step(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * self.scale

        __call__ = step

    steps = Steps()
    expected = [("layer.weight", "parameter"), ("layer.bias", "parameter"), ("scale", "input")]
    assert brought(check(trace(steps.step, x))) == expected
    assert brought(check(trace(steps, x))) == expected
    assert brought(check(trace(lambda x: steps.step(x), x))) == [(f"steps.{name}", role) for name, role in expected]


def test_the_method_of_a_module_has_the_names_of_the_module(x: torch.Tensor) -> None:
    traced = check(trace(LAYER.forward, x))
    assert [(each.name, each.role, each.closure) for each in traced.inputs[:3]] == [
        ("weight", "parameter", False), ("bias", "parameter", False), ("input", "input", False),
    ]  # fmt: skip


def test_containers(x: torch.Tensor) -> None:
    traced = check(trace(lambda x: HELD["layers"][0](x) + HELD["shift"], x))
    assert brought(traced) == [
        ("HELD.layers[0].weight", "parameter"), ("HELD.layers[0].bias", "parameter"), ("HELD.shift", "input"),
    ]  # fmt: skip


def test_plain_tensor_attributes_of_modules(x: torch.Tensor) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mask = torch.tensor([1.0, 0.0, 1.0])
            self._kept = [torch.ones(3)]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.mask + self._kept[0]

    traced = check(trace(nn.Sequential(Masked(), nn.Linear(3, 2)), x))
    assert brought(traced) == [("0.mask", "input"), ("0._kept[0]", "input")]


def test_a_module_whose_loss_is_a_module(x: torch.Tensor) -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, out: torch.Tensor) -> torch.Tensor:
            return (out * self.weight).sum()

    traced = check(trace(LAYER, x, loss=Weighted()))
    assert names(traced, "parameter") == ["weight", "bias", "loss.weight"]


def test_what_only_a_run_can_find(x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that no name in the code leads to is found when it is used, and lifted all the same."""
    hidden = types.ModuleType("hidden_module")
    hidden.scale = torch.randn(3, requires_grad=True)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hidden_module", hidden)

    def program(x: torch.Tensor) -> torch.Tensor:
        import hidden_module

        return x * hidden_module.scale

    traced = check(trace(program, x))
    assert brought(traced) == [("hidden_module.scale", "input")]
    assert output_names(traced) == ["out", "grad(hidden_module.scale)"]


def test_a_closed_over_argument_is_the_argument(x: torch.Tensor) -> None:
    x.requires_grad_()
    traced = check(trace(lambda q: q * 2, x, loss=lambda out: (out * x).sum()))
    assert names(traced) == ["q"]
    assert output_names(traced) == ["loss", "out", "grad(q)"]


def test_what_is_not_used_is_no_input(x: torch.Tensor) -> None:
    other = nn.Linear(3, 2)
    assert names(check(trace(lambda x: x * 2 if x.shape[0] else other(x) * SCALE, x))) == ["x"]


def test_one_used_parameter_keeps_its_module_whole(x: torch.Tensor) -> None:
    traced = check(trace(lambda x: x @ LAYER.weight.t(), x))
    assert names(traced, "parameter") == ["LAYER.weight", "LAYER.bias"]
    assert traced.outputs[-1].name == "grad(LAYER.bias)"
    assert traced.outputs[-1].global_shape is None


def test_constants_made_inside_stay_in_the_graph(x: torch.Tensor) -> None:
    numpy = pytest.importorskip("numpy")

    def program(x: torch.Tensor) -> torch.Tensor:
        made = torch.tensor([1.0, 2.0, 3.0]) + torch.arange(3) + torch.zeros(3)
        return x + made + torch.from_numpy(numpy.ones(3, dtype=numpy.float32))

    assert names(check(trace(program, x))) == ["x"]


def test_a_tensor_that_is_only_returned(x: torch.Tensor) -> None:
    traced = check(trace(lambda x: (x * 2, SCALE), x))
    assert brought(traced) == [("SCALE", "input")]


def test_a_custom_function_may_take_arguments_and_parameters_alone(x: torch.Tensor) -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        def backward(ctx, grad):
            a, b = ctx.saved_tensors
            return grad @ b.t(), a.t() @ grad

    w = torch.randn(3, 2, requires_grad=True)
    check(trace(lambda a, b: Product.apply(a, b).relu(), x, w))
    with pytest.raises(TraceError, match="its gradient would be lost: its shape is \\[3, 2\\]") as caught:
        trace(lambda a: Product.apply(a, w).relu(), x)
    assert "pass the tensor as an argument of the traced function" in str(caught.value)
    assert "Product.apply(a, w)" in str(caught.value)
