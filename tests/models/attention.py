"""Attention in its many forms, and what stands in for it."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.models.specimen import Specimen, columns_then_rows

__all__ = ["MODELS"]

WIDTH, HEADS = 16, 4


def _heads(x: torch.Tensor, count: int) -> torch.Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


class Attention(nn.Module):
    """Attention of queries to a context, with an optional bias added to the scores."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor, context: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (_heads(layer(y), self.heads) for layer, y in ((self.q, x), (self.k, context), (self.v, context)))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        weights = (scores if bias is None else scores + bias).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


def _perceptron(width: int = WIDTH) -> nn.Sequential:
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


class GroupedQueryBlock(nn.Module):
    """Fewer heads of keys than of queries, rotated as complex numbers; fused causal attention; RMS norm; SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = nn.Linear(WIDTH, WIDTH // 2, bias=False), nn.Linear(WIDTH, WIDTH // 2, bias=False)
        self.first, self.second, self.mlp = RmsNorm(WIDTH), RmsNorm(WIDTH), SwiGlu(WIDTH, 24)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        q, k, v = _heads(self.q(y), HEADS), _heads(self.k(y), HEADS // 2), _heads(self.v(y), HEADS // 2)
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
        self.attention, self.mlp = Attention(), _perceptron()

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


class ShiftedWindows(nn.Module):
    """Attention within windows, then within windows that are shifted by half; patches are merged after it."""

    def __init__(self) -> None:
        super().__init__()
        self.straight, self.shifted = Attention(), Attention()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.merge, self.head = nn.Linear(4 * WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def windows(self, x: torch.Tensor, attention: nn.Module) -> torch.Tensor:
        b, h, w, d = x.shape
        cut = x.view(b, h // 2, 2, w // 2, 2, d).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, d)
        mixed = attention(cut, cut).view(b, h // 2, w // 2, 2, 2, d)
        return mixed.permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.windows(self.norms[0](x), self.straight)
        moved = self.norms[1](x).roll((-1, -1), (1, 2))
        x = x + self.windows(moved, self.shifted).roll((1, 1), (1, 2))
        corners = torch.cat([x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], -1)
        return self.head(self.merge(corners).mean((1, 2)))


def swin() -> Specimen:
    targets = torch.randint(3, (8,))
    return Specimen(
        ShiftedWindows(),
        [torch.randn(8, 4, 4, WIDTH)],
        loss=lambda out: F.cross_entropy(out, targets),
        rules=columns_then_rows(["**.q", "**.k", "**.v"], ["**.o"]),
    )


class Perceiver(nn.Module):
    """A few learned vectors read a long input, and think about it."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(3, WIDTH))
        self.read, self.think, self.mlp, self.norm = Attention(), Attention(), _perceptron(), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.latents.expand(x.shape[0], -1, -1)
        z = z + self.read(z, x)
        z = z + self.think(self.norm(z), self.norm(z))
        return self.mlp(z).amax(1)


def perceiver() -> Specimen:
    targets = torch.randn(5, WIDTH)
    return Specimen(
        Perceiver(),
        [torch.randn(5, 9, WIDTH)],
        loss=lambda out: F.huber_loss(out, targets),
        rules=columns_then_rows(*BLOCK_RULES),
    )


class DiffusionTransformer(nn.Module):
    """Predicts noise; the time enters by scales and shifts of the norms (adaLN)."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.join = nn.Conv2d(3, WIDTH, 2, stride=2), nn.Linear(WIDTH, 12)
        self.time, self.modulation = _perceptron(), nn.Linear(WIDTH, 6 * WIDTH)
        self.attention, self.mlp = Attention(), _perceptron()
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)

    def forward(self, image: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        waves = time[:, None] * torch.exp(-torch.arange(WIDTH // 2) * math.log(1e4) / (WIDTH // 2))
        when = self.time(torch.cat([waves.sin(), waves.cos()], -1))
        shift, scale, gate, shift2, scale2, gate2 = self.modulation(F.silu(when))[:, None].chunk(6, -1)
        x = self.cut(image).flatten(2).transpose(1, 2)
        y = self.norm(x) * (1 + scale) + shift
        x = x + gate * self.attention(y, y)
        x = x + gate2 * self.mlp(self.norm(x) * (1 + scale2) + shift2)
        patches = self.join(x).view(-1, 2, 2, 3, 2, 2)
        return patches.permute(0, 3, 1, 4, 2, 5).reshape(image.shape)


def diffusion_transformer() -> Specimen:
    noise = torch.randn(8, 3, 4, 4)
    return Specimen(
        DiffusionTransformer(),
        [torch.randn(8, 3, 4, 4), torch.rand(8) * 100],
        loss=lambda out: F.mse_loss(out, noise),
        rules=columns_then_rows(*BLOCK_RULES),
    )


class Mixture(nn.Module):
    """Experts of fixed capacity: each takes its first few tokens; what comes later passes by. Top 2 of 4."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4, bias=False)
        self.up, self.down = nn.Parameter(torch.randn(4, WIDTH, 24) / 4), nn.Parameter(torch.randn(4, 24, WIDTH) / 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chances = self.gate(x).softmax(-1)
        best, which = chances.topk(2, -1)
        chosen = F.one_hot(which, 4).float()  # [batch, token, choice, expert]
        place = chosen.flatten(1, 2).cumsum(1).view_as(chosen) * chosen - 1
        slots = F.one_hot(place.clamp(min=0, max=3).long(), 4) * ((place >= 0) & (place < 4)).unsqueeze(-1)
        combine = torch.einsum("btk,btkes->btes", best, slots.float())
        dispatch = (combine > 0).float()
        inside = torch.einsum("btes,btd->ebsd", dispatch, x)
        hidden = F.gelu(torch.einsum("ebsd,edh->ebsh", inside, self.up))
        outside = torch.einsum("ebsh,ehd->ebsd", hidden, self.down)
        balance = (chances.mean((0, 1)) * chosen.sum(2).mean((0, 1))).sum()
        return torch.einsum("btes,ebsd->btd", combine, outside), balance


def mixture_of_experts() -> Specimen:
    targets = torch.randn(8, 6, WIDTH)
    return Specimen(
        Mixture(),
        [torch.randn(8, 6, WIDTH)],
        loss=lambda out: F.mse_loss(out[0], targets) + 0.01 * out[1],
        rules={"up": "e/tp d h", "down": "e/tp h d"},
    )


def rounded_mlp() -> Specimen:
    """A perceptron whose matrices are multiplied in bfloat16 (autocast)."""

    class Rounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp, self.norm = _perceptron(), nn.LayerNorm(WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.norm(x + self.mlp(x)).float()

    targets = torch.randn(6, WIDTH)
    return Specimen(
        Rounded(),
        [torch.randn(6, WIDTH)],
        loss=lambda out: F.mse_loss(out, targets),
        rules=columns_then_rows(["mlp.0"], ["mlp.2"]),
    )


MODELS = (
    rotary_decoder, checkpointed_gpt, torch_encoder, torch_multihead, alibi, swin, perceiver, diffusion_transformer,
    mixture_of_experts, rounded_mlp,
)  # fmt: skip
