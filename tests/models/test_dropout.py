"""A model of the transformers library as it trains, with dropout everywhere, drawn as a single device draws."""

from __future__ import annotations

import copy

import pytest
import torch

import spmd_lab as sl
from tests.models.library import gpt2_with_dropout

MESHES = {"dp": sl.Mesh(dp=4), "tp": sl.Mesh(tp=4), "mixed": sl.Mesh(dp=2, tp=2)}


@pytest.mark.parametrize("name", MESHES)
def test_gpt2_with_dropout_equals_the_single_device_run(name: str) -> None:
    torch.manual_seed(0)
    specimen, mesh = gpt2_with_dropout(), MESHES[name]
    rules = specimen.rules if "tp" in mesh.axes else {}
    expansion = sl.expand(specimen.trace(), mesh, batch="dp" if "dp" in mesh.axes else None, params=rules)
    assert sum(step.draw_bytes > 0 for step in expansion.steps) == 7, "embedding, and two layers of three"
    assert [step.fallback for step in expansion.steps if step.fallback] == []
    expansion.program.verify(seed=5).raise_if_wrong()


def test_one_rank_alone_draws_what_eager_pytorch_draws() -> None:
    """Held against the model itself, without the proof."""
    torch.manual_seed(0)
    specimen = gpt2_with_dropout()
    expansion = sl.expand(specimen.trace(), sl.Mesh(dp=1))
    torch.manual_seed(9)
    found = expansion.program.for_rank(0)(*(each.detach() for each in expansion.traced.values))
    eager = copy.deepcopy(specimen.model)
    torch.manual_seed(9)
    loss = eager(**specimen.kwargs).loss
    loss.backward()
    named = dict(zip((each.name for each in expansion.traced.outputs), found, strict=True))
    torch.testing.assert_close(named["loss"], loss.detach())
    for name, parameter in eager.named_parameters():
        torch.testing.assert_close(named[f"grad({name})"], parameter.grad, rtol=1e-4, atol=1e-6)
