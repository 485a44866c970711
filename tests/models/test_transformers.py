"""Every output and every gradient of real models equals the single-device run, on data, tensor and mixed meshes."""

from __future__ import annotations

from functools import cache

import pytest
import torch

import spmd_lab as sl
from tests.models.zoo import ZOO, Specimen

MESHES = {
    "dp=4": (sl.Mesh(dp=4), ("batch",)),
    "tp=4": (sl.Mesh(tp=4), ("params",)),
    "dp=2,tp=2": (sl.Mesh(dp=2, tp=2), ("batch", "params")),
}


@cache
def traced(name: str) -> tuple[Specimen, sl.TracedGraph]:
    torch.manual_seed(0)
    specimen = ZOO[name]()
    return specimen, specimen.trace()


def expanded(name: str, mesh_name: str) -> sl.Expansion:
    specimen, graph = traced(name)
    mesh, wanted = MESHES[mesh_name]
    placing = {"batch": "dp", "params": specimen.rules}
    return sl.expand(graph, mesh, **{key: placing[key] for key in wanted})


@pytest.mark.parametrize("mesh_name", MESHES)
@pytest.mark.parametrize("name", ZOO)
def test_every_output_and_gradient_equals_the_single_device_run(name: str, mesh_name: str) -> None:
    expansion = expanded(name, mesh_name)
    report = expansion.program.verify()
    report.raise_if_wrong()
    gradients = {each.name for each in report.outputs if each.name.startswith("grad(")}
    assert gradients == {f"grad({found.name})" for found in expansion.traced.inputs if found.role == "parameter"}
    assert {"loss", "out.loss", "out.logits"} <= {each.name for each in report.outputs}
    assert all(each.ok for each in report.outputs)
    assert not [step for step in expansion.steps if step.fallback]


@pytest.mark.parametrize("name", ZOO)
def test_every_operator_and_every_collective_has_a_line(name: str) -> None:
    _, graph = traced(name)
    assert [node.name for node in graph.op_nodes if graph.source(node) is None] == []
    collectives = expanded(name, "dp=2,tp=2").collectives
    assert len(collectives) > 0
    assert [each for each in collectives if each.source is None] == []


@pytest.mark.parametrize("name", ZOO)
def test_the_table_of_collectives_counts_what_runs(name: str) -> None:
    expansion = expanded(name, "dp=2,tp=2")
    waits = [
        node for node in expansion.program.graph_module.graph.nodes
        if node.target is torch.ops._c10d_functional.wait_tensor.default
    ]  # fmt: skip
    assert len(waits) == len(expansion.collectives)


def test_tensor_parallel_matrices_are_divided() -> None:
    expansion = expanded("gpt2", "tp=4")
    assert str(expansion.layout("transformer.h.0.mlp.c_fc.weight")) == "f32[32, 128/tp]"
    assert str(expansion.layout("transformer.h.0.mlp.c_proj.weight")) == "f32[128/tp, 32]"
