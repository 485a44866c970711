"""Attention in windows, over latents and patches; experts; mixed precision."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.blocks import (
    BLOCK_RULES,
    WIDTH,
    Attention,
    perceptron,
)
from tests.models.specimen import Specimen, columns_then_rows

__all__ = ["MODELS"]


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
        self.read, self.think, self.mlp, self.norm = Attention(), Attention(), perceptron(), nn.LayerNorm(WIDTH)

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
        self.time, self.modulation = perceptron(), nn.Linear(WIDTH, 6 * WIDTH)
        self.attention, self.mlp = Attention(), perceptron()
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
            self.mlp, self.norm = perceptron(), nn.LayerNorm(WIDTH)

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


MODELS = (swin, perceiver, diffusion_transformer, mixture_of_experts, rounded_mlp)
