"""Every output and every gradient of real models equals the single-device run, on data, tensor and mixed meshes."""

from __future__ import annotations

from functools import cache

import pytest

import spmd_lab as sl
from tests.models.zoo import ZOO, traced

MESHES = {"dp=4": sl.Mesh(dp=4), "tp=4": sl.Mesh(tp=4), "dp=2,tp=2": sl.Mesh(dp=2, tp=2)}

ONLY_REDUCED = (
    "gpt2", "llama", "vit", "swin", "diffusion_transformer", "rounded_mlp", "resnet", "unet", "unet_bilinear",
    "mlp_mixer", "autoencoder", "wavenet", "hand_written_lstm", "mamba", "translator", "gan", "vae", "distillation",
    "hypernetwork", "deep_q", "matrix_factorisation",
)  # fmt: skip
"""Models no row of which meets another, and no uneven batch of which is merged with another dim."""


@cache
def expanded(name: str, mesh_name: str) -> sl.Expansion:
    """The model with its batch divided over dp, and its matrices over tp."""
    specimen, graph = traced(name)
    mesh = MESHES[mesh_name]
    batch = specimen.batch_along("dp") if "dp" in mesh.axes else None
    return sl.expand(graph, mesh, batch=batch, params=specimen.rules if "tp" in mesh.axes else {})


@pytest.mark.parametrize("mesh_name", MESHES)
@pytest.mark.parametrize("name", ZOO)
def test_every_output_and_gradient_equals_the_single_device_run(name: str, mesh_name: str) -> None:
    specimen, graph = traced(name)
    if mesh_name == "tp=4" and not specimen.rules:
        pytest.skip("its matrices are not divided")
    expansion = expanded(name, mesh_name)
    report = expansion.program.verify()
    report.raise_if_wrong()
    assert all(each.ok for each in report.outputs)
    found = {each.name for each in report.outputs}
    trained = {name for name, each in specimen.model.named_parameters() if each.requires_grad}
    assert {f"grad({name})" for name in trained} <= found
    statistics = {each.name for each in graph.inputs if each.role == "buffer" and each.name.endswith("running_var")}
    updated = {f"new({name})" for name in statistics} if specimen.model.training else set()
    assert {"loss"} | updated <= found


@pytest.mark.parametrize("mesh_name", MESHES)
@pytest.mark.parametrize("name", ZOO)
def test_no_operator_is_gathered_for_want_of_a_rule(name: str, mesh_name: str) -> None:
    assert [(step.op, step.fallback) for step in expanded(name, mesh_name).steps if step.fallback] == []


@pytest.mark.parametrize("name", ZOO)
def test_every_operator_and_every_collective_has_a_line(name: str) -> None:
    _, graph = traced(name)
    assert [node.name for node in graph.op_nodes if graph.source(node) is None] == []
    collectives = expanded(name, "dp=2,tp=2").collectives
    assert len(collectives) > 0
    assert [each for each in collectives if each.source is None] == []


@pytest.mark.parametrize("name", ONLY_REDUCED)
def test_a_divided_batch_stays_where_it_is(name: str) -> None:
    """Losses, statistics and gradients are reduced, and nothing else travels."""
    assert {each.kind for each in expanded(name, "dp=4").collectives} == {"all_reduce"}


def test_there_are_more_than_thirty() -> None:
    assert len(ZOO) >= 30
