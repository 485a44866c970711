"""Whatever happens, a trace leaves the user's objects and the process as they were."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.functional_tensor import FunctionalTensor

from spmd_lab import trace
from spmd_lab.errors import TraceError
from tests.process import process_as_found
from tests.trace.programs import Normed, example_values


class Untidy(nn.Module):
    """Keeps what it computed, in an attribute, a list, a dict and a buffer."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.inner = Normed()
        self.register_buffer("count", torch.zeros(()))
        self.history: list[torch.Tensor] = []
        self.cache: dict[str, torch.Tensor] = {"x": torch.ones(1)}
        self.fails = fails

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = self.count + 1
        out = self.inner(x)
        self.last = out
        self.history.append(out)
        self.cache["x"] = out
        if self.fails:
            return out * float(out.detach().sum())
        return out


def state_of(module: nn.Module) -> list[Any]:
    """Everything in a module: the very objects, what containers hold, the numbers and their versions."""
    found: list[Any] = []
    for child in module.modules():
        for name, value in vars(child).items():
            found.append((name, id(value)))
            if isinstance(value, dict):
                found.append([(key, id(each)) for key, each in value.items()])
            if isinstance(value, list):
                found.append([id(each) for each in value])
    tensors = [*module.parameters(), *module.buffers()]
    return found + [(each.tolist(), each._version, each.requires_grad, each.grad) for each in tensors]


@pytest.fixture(scope="module", autouse=True)
def _exporter_is_loaded() -> None:
    """The first trace imports the exporter, and what that brings along sets filters of warnings."""
    trace(nn.Identity(), torch.ones(1))


@pytest.mark.parametrize("fails", [False, True])
def test_the_module_and_the_process(fails: bool) -> None:
    model, x = Untidy(fails), torch.randn(4, 3)
    before, kept = state_of(model), x.clone()
    with process_as_found():
        if fails:
            with pytest.raises(TraceError):
                trace(model, x)
        else:
            trace(model, x, loss=lambda out: out.sum())
    assert state_of(model) == before
    assert torch.equal(x, kept)
    assert x._version == 0


def test_the_process_after_a_seed_inside() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(7)
        return x

    with process_as_found(), pytest.raises(TraceError):
        trace(program, torch.ones(3))


def test_the_process_after_an_interrupt() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    with process_as_found(), pytest.raises(KeyboardInterrupt):
        trace(program, torch.ones(3))


def test_the_reference_changes_nothing_either() -> None:
    model = Untidy(fails=False)
    traced = trace(model, torch.randn(4, 3))
    values = example_values(traced)
    before, kept = state_of(model), [value.detach().clone() for value in values]
    with process_as_found():
        first, second = traced.reference.run(values), traced.reference.run(values)
    assert state_of(model) == before
    assert all(torch.equal(value, each) for value, each in zip(values, kept, strict=True))
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))


def test_the_reference_runs_on_the_values_that_it_is_given() -> None:
    w = torch.randn(3, 2, requires_grad=True)
    traced = trace(lambda x: x @ w, torch.randn(4, 3), loss=lambda out: out.sum())
    x, other = torch.randn(4, 3), torch.randn(3, 2)
    loss, out, grad = traced.reference.run([x, other])
    torch.testing.assert_close(out, x @ other)
    torch.testing.assert_close(loss, out.sum())
    torch.testing.assert_close(grad, x.sum(0)[:, None].expand(3, 2))


def test_globals_and_cells_keep_their_tensors() -> None:
    w = torch.randn(3, 2, requires_grad=True)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x @ w

    trace(program, torch.randn(4, 3))
    assert program.__closure__ is not None
    assert program.__closure__[0].cell_contents is w
    assert w.grad is None


def test_a_hook_of_the_user_runs_and_stays() -> None:
    model, calls = nn.Linear(3, 2), []
    handle = model.register_forward_hook(lambda module, args, out: calls.append(type(out)) or out * 2)
    traced = trace(model, torch.randn(4, 3), backward=False)
    assert calls
    assert len(model._forward_hooks) == 1
    assert "aten.mul.Tensor" in [str(node.target) for node in traced.op_nodes]
    handle.remove()


def alive() -> int:
    """How many tensors of an export there are."""
    gc.collect()
    return sum(type(each) is FunctionalTensor for each in gc.get_objects())


def test_a_trace_keeps_no_tensor_of_the_export() -> None:
    before = alive()
    traced = trace(lambda x: {"a": [x * 2], "b": (x, 3)}, torch.randn(4, 3, requires_grad=True))
    assert alive() == before
    assert traced.structure is not None
