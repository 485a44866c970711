"""Models of the transformers library: what is shown of them."""

from __future__ import annotations

import pytest
import torch

from tests.models import library
from tests.models.test_zoo import expanded

NAMES = [make.__name__ for make in library.MODELS]


@pytest.mark.parametrize("name", NAMES)
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
