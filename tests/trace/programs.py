"""Small programs to trace, and what every trace must fulfil."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import fx, nn
from torch.nn import functional

if TYPE_CHECKING:
    from spmd_lab import TracedGraph

__all__ = ["GPT", "Block", "Normed", "check", "example_values", "names", "output_names"]


class Block(nn.Module):
    """A transformer block; its attention is one call of torch."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.o = nn.Linear(width, width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1)]
        mixed = functional.scaled_dot_product_attention(*split, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(x)))


class GPT(nn.Module):
    """Tied embedding, a position embedding from an arange, two blocks."""

    def __init__(self, vocabulary: int = 32, width: int = 16, length: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 2) for _ in range(2))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Normed(nn.Module):
    """A layer after a batch norm, whose buffers change as it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(3)
        self.fc = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.bn(x))


def names(traced: TracedGraph, role: str | None = None) -> list[str]:
    """The names of the inputs, of one role or of all."""
    return [each.name for each in traced.inputs if role in (None, each.role)]


def output_names(traced: TracedGraph) -> list[str]:
    """The names of the outputs."""
    return [each.name for each in traced.outputs]


def example_values(traced: TracedGraph) -> list[torch.Tensor]:
    """A real value for each input: the example's own, and uneven tangents."""
    return [
        torch.randn(each.global_shape, dtype=each.dtype) if each.role == "tangent" else value
        for each, value in zip(traced.inputs, traced.values, strict=True)
    ]


def check(traced: TracedGraph) -> TracedGraph:
    """Assert what holds of every trace: shape of the graph, meta, and the same numbers as eager PyTorch."""
    graph = traced.graph_module.graph
    graph.lint()
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    assert [node.name for node in placeholders] == [each.node for each in traced.inputs]
    assert [tuple(node.meta["val"].shape) for node in placeholders] == [each.global_shape for each in traced.inputs]
    assert len(set(names(traced))) == len(traced.inputs) == len(traced.values)
    for node in graph.nodes:
        assert set(node.meta) <= {"val", "source", "phase", "checkpoint", "kept"}
        if node.op == "call_function":
            assert node.meta["source"] is not None, node
            assert node.meta["phase"] in ("forward", "backward")
    values = example_values(traced)
    before = [value.detach().clone() for value in values]
    expected = traced.reference.run(values)
    got = fx.Interpreter(traced.graph_module).run(*[value.detach().clone() for value in values])
    assert all(torch.equal(value, kept) for value, kept in zip(values, before, strict=True)), "arguments were changed"
    assert len(got) == len(expected) == len(traced.outputs)
    for output, ours, theirs in zip(traced.outputs, got, expected, strict=True):
        if isinstance(theirs, torch.Tensor):
            torch.testing.assert_close(ours, theirs, msg=lambda text, name=output.name: f"{name}: {text}")
            assert (output.global_shape, output.dtype) == (tuple(theirs.shape), theirs.dtype)
        else:
            assert (ours, output.global_shape, output.dtype) == (theirs, None, None)
    return traced
