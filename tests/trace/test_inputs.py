"""Inputs may be real, fake or on meta; the values of the trace are the user's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from spmd_lab import TracedGraph, trace
from tests.trace.programs import GPT, Normed, check


def shape_of(traced: TracedGraph) -> list[tuple[str, str]]:
    return [(node.name, str(node.target)) for node in traced.graph_module.graph.nodes]


def devices(traced: TracedGraph) -> set[str]:
    values = [node.meta["val"] for node in traced.graph_module.graph.nodes if node.op == "placeholder"]
    assert all(isinstance(value, FakeTensor) for value in values)
    return {value.device.type for value in values}


def trained(model: nn.Module, x: torch.Tensor) -> TracedGraph:
    return trace(model, x, loss=lambda out: out.square().mean())


@pytest.mark.parametrize("module_on", ["cpu", "meta"])
@pytest.mark.parametrize("input_on", ["cpu", "meta", "fake"])
def test_where_the_tensors_are_does_not_matter(module_on: str, input_on: str) -> None:
    real = trained(Normed(), torch.randn(4, 3))
    model, x = Normed().to(module_on), torch.randn(4, 3, device="meta" if input_on == "meta" else "cpu")
    if input_on == "fake":
        x = FakeTensorMode().from_tensor(x)
    traced = trained(model, x)
    assert shape_of(traced) == shape_of(real)
    assert devices(traced) == {"cpu"}
    assert traced.inputs == real.inputs
    assert traced.outputs == real.outputs
    assert traced.values[-1] is x


def test_a_whole_model_may_be_fake() -> None:
    with FakeTensorMode():
        model, tokens = GPT(), torch.randint(32, (2, 8))
    traced = trained(model, tokens)
    assert shape_of(traced) == shape_of(trained(GPT(), torch.randint(32, (2, 8))))
    assert all(isinstance(value, FakeTensor) for value in traced.values)


def test_a_model_too_large_for_memory() -> None:
    with torch.device("meta"):
        model = nn.Linear(1 << 20, 1 << 20)
    traced = trained(model, torch.empty(1 << 16, 1 << 20, device="meta"))
    assert traced.inputs[0].global_shape == (1 << 20, 1 << 20)


def test_strides_and_dtypes_are_those_of_the_example() -> None:
    x = torch.randn(3, 4, dtype=torch.float64).t()
    traced = check(trace(lambda x, y: x * y, x, torch.ones(1, 3).expand(4, 3)))
    node = traced.node("x")
    assert (node.meta["val"].stride(), node.meta["val"].dtype) == ((1, 4), torch.float64)
    assert traced.node("y").meta["val"].stride() == (0, 1)


def test_the_values_are_the_users_own() -> None:
    model, x = Normed(), torch.randn(4, 3)
    traced = trained(model, x)
    assert [id(value) for value in traced.values] == [id(v) for v in (*model.parameters(), *model.buffers(), x)]


def test_tangents_are_fake() -> None:
    traced = trace(nn.Linear(3, 2), torch.randn(4, 3))
    assert isinstance(traced.values[-1], FakeTensor)


@pytest.mark.gpu
def test_everything_follows_the_device_of_the_real_tensors() -> None:
    model = nn.Linear(3, 2, device="cuda")
    assert devices(trained(model, torch.randn(4, 3, device="meta"))) == {"cuda"}


def test_a_container_may_hold_itself() -> None:
    batch: dict[str, object] = {"x": torch.randn(2, 3)}
    batch |= {"self": batch, "twice": [batch, batch]}
    traced = trace(lambda batch: batch["twice"][0]["x"] * batch["x"], batch)
    assert [each.name for each in traced.inputs] == ["batch.x"]
    check(traced)
