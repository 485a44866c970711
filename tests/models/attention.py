"""Attention over sequences."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.models.blocks import (
    ATTENTION_RULES,
    BLOCK_RULES,
    HEADS,
    WIDTH,
    Attention,
    RmsNorm,
    SwiGlu,
    heads_of,
    perceptron,
)
from tests.models.specimen import Specimen, columns_then_rows

__all__ = ["MODELS"]


class GroupedQueryBlock(nn.Module):
    """Fewer heads of keys than of queries, rotated as complex numbers; fused causal attention; RMS norm; SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = nn.Linear(WIDTH, WIDTH // 2, bias=False), nn.Linear(WIDTH, WIDTH // 2, bias=False)
        self.first, self.second, self.mlp = RmsNorm(WIDTH), RmsNorm(WIDTH), SwiGlu(WIDTH, 24)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        q, k, v = heads_of(self.q(y), HEADS), heads_of(self.k(y), HEADS // 2), heads_of(self.v(y), HEADS // 2)
        q, k = _rotated(q, turns), _rotated(k, turns)
        k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.second(x))


def _rotated(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns).flatten(-2)


class RotaryDecoder(nn.Module):
    """A decoder in the manner of Llama, written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.block = nn.Embedding(32, WIDTH), GroupedQueryBlock()
        self.norm, self.head = RmsNorm(WIDTH), nn.Linear(WIDTH, 32, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        speeds = 10000 ** (-torch.arange(0, WIDTH // HEADS, 2) / (WIDTH // HEADS))
        angles = torch.outer(torch.arange(tokens.shape[1]), speeds)
        turns = torch.polar(torch.ones_like(angles), angles)
        return self.head(self.norm(self.block(self.embedding(tokens), turns)))


def rotary_decoder() -> Specimen:
    tokens = torch.randint(32, (5, 6))
    rules = columns_then_rows(["**.q", "**.k", "**.v", "**.gate", "**.up", "head"], ["**.o", "**.down"])
    return Specimen(
        RotaryDecoder(),
        [tokens],
        loss=lambda out: F.cross_entropy(out[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()),
        rules=rules | {"embedding.weight": "v/tp d"},
    )


class CheckpointedGpt(nn.Module):
    """A GPT whose blocks are recomputed in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(32, WIDTH), nn.Parameter(torch.randn(6, WIDTH))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.attention, self.mlp = Attention(), perceptron()

    def block(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        past = torch.full((6, 6), -math.inf).triu(1)
        x = x + self.attention(y, y, past)
        return x + self.mlp(self.norms[1](x))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.positions
        x = checkpoint(self.block, x, use_reentrant=False)
        return self.norms[2](x) @ self.embedding.weight.T


def checkpointed_gpt() -> Specimen:
    tokens = torch.randint(32, (5, 6))
    return Specimen(
        CheckpointedGpt(),
        [tokens],
        loss=lambda out: F.cross_entropy(out.transpose(1, 2), tokens.roll(-1, 1), label_smoothing=0.1),
        rules=columns_then_rows(*BLOCK_RULES),
    )


def torch_encoder() -> Specimen:
    """``nn.TransformerEncoderLayer`` with a padding mask."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True, norm_first=True)
    x, targets = torch.randn(6, 5, WIDTH), torch.randn(6, 5, WIDTH)
    padded = torch.arange(5) >= torch.tensor([5, 4, 3, 5, 2, 5])[:, None]
    return Specimen(
        nn.TransformerEncoder(layer, 1, enable_nested_tensor=False),
        [x],
        {"src_key_padding_mask": padded},
        loss=lambda out: F.smooth_l1_loss(out, targets),
        rules=columns_then_rows(["**.linear1"], ["**.linear2"]),
    )


class Reader(nn.Module):
    """``nn.MultiheadAttention`` from one sequence to another; the averaged weights are an output too."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = (
            nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dropout=0.0),
            nn.LayerNorm(WIDTH),
        )

    def forward(self, question: torch.Tensor, text: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found, weights = self.attention(question, text, text)
        return self.norm(question + found), weights


def torch_multihead() -> Specimen:
    question, text, targets = torch.randn(6, 3, WIDTH), torch.randn(6, 7, WIDTH), torch.randint(7, (6, 3))
    return Specimen(
        Reader(),
        [question, text],
        loss=lambda out: F.nll_loss(out[1].log().flatten(0, 1), targets.flatten()) + out[0].square().mean(),
    )


class Alibi(nn.Module):
    """Attention whose scores fall with the distance, at a slope of its own for every head."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = Attention(), nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1])
        slopes = 2.0 ** -torch.arange(1, HEADS + 1)
        bias = -(places[:, None] - places).abs() * slopes[:, None, None]
        bias = bias.masked_fill(places[None, :] > places[:, None], -math.inf)
        return self.head(self.attention(x, x, bias).mean(1))


def alibi() -> Specimen:
    targets = torch.randint(3, (5,))
    return Specimen(
        Alibi(),
        [torch.randn(5, 6, WIDTH)],
        loss=lambda out: F.cross_entropy(out, targets, weight=torch.tensor([1.0, 2.0, 0.5])),
        rules=columns_then_rows(*ATTENTION_RULES),
    )


MODELS = (rotary_decoder, checkpointed_gpt, torch_encoder, torch_multihead, alibi)
