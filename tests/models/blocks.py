"""Blocks that several models are made of."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

__all__ = [
    "ATTENTION_RULES", "BLOCK_RULES", "HEADS", "WIDTH", "Attention", "RmsNorm", "SwiGlu", "heads_of", "perceptron",
]  # fmt: skip

WIDTH, HEADS = 16, 4


def heads_of(x: torch.Tensor, count: int) -> torch.Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


class Attention(nn.Module):
    """Attention of queries to a context, with an optional bias added to the scores."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor, context: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (heads_of(layer(y), self.heads) for layer, y in ((self.q, x), (self.k, context), (self.v, context)))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        weights = (scores if bias is None else scores + bias).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


def perceptron(width: int = WIDTH) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


ATTENTION_RULES = (["**.q", "**.k", "**.v"], ["**.o"])
BLOCK_RULES = (["**.q", "**.k", "**.v", "**.mlp.0"], ["**.o", "**.mlp.2"])


class RmsNorm(nn.Module):
    """Divides by the root of the mean square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scale


class SwiGlu(nn.Module):
    """A gated perceptron."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))
