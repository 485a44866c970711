"""Tables, sets, graphs and points in space."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.specimen import Specimen, columns_then_rows

__all__ = ["MODELS"]


class Dlrm(nn.Module):
    """Embedding bags for the categories, a perceptron for the numbers, and the products of all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(size, 8, mode="sum") for size in (10, 7, 13))
        self.bottom = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
        self.top = nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, numbers: torch.Tensor, *categories: torch.Tensor) -> torch.Tensor:
        x = self.bottom(numbers)
        rows = torch.stack([x, *(bag(which) for bag, which in zip(self.bags, categories, strict=True))], 1)
        i, j = torch.tril_indices(4, 4, -1)
        pairs = torch.bmm(rows, rows.transpose(1, 2))[:, i, j]
        return self.top(torch.cat([x, pairs], 1)).squeeze(1)


def dlrm() -> Specimen:
    clicked = torch.randint(2, (6,)).float()
    categories = [torch.randint(size, (6, 3)) for size in (10, 7, 13)]
    return Specimen(
        Dlrm(),
        [torch.randn(6, 4), *categories],
        loss=lambda out: F.binary_cross_entropy_with_logits(out, clicked),
        rules={"bags.0.weight": "v d/tp", "bags.2.weight": "v/tp d"} | columns_then_rows(["*.0"], ["*.2"]),
    )


class Factors(nn.Module):
    """Users and items as vectors; a rating is their product."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(11, 6), nn.Embedding(9, 6)
        self.user_bias, self.item_bias = nn.Embedding(11, 1), nn.Embedding(9, 1)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        product = (self.users(user) * self.items(item)).sum(-1)
        return product + self.user_bias(user).squeeze(-1) + self.item_bias(item).squeeze(-1)


def matrix_factorisation() -> Specimen:
    ratings = torch.rand(10) * 5
    model = Factors()
    return Specimen(
        model,
        [torch.randint(11, (10,)), torch.randint(9, (10,))],
        loss=lambda out: F.mse_loss(out, ratings) + 0.01 * (model.users.weight.norm() + model.items.weight.norm()),
        rules={"users.weight": "u/tp d", "items.weight": "i d/tp", "user_bias.weight": "u/tp 1"},
    )


class Field(nn.Module):
    """In the manner of NeRF: points along rays, as waves of many lengths; density and colour; light added up."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(15, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.density, self.colour = nn.Linear(16, 1), nn.Linear(16, 3)

    def forward(self, origin: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
        depths = torch.linspace(0.5, 2.0, 6)
        points = origin[:, None] + direction[:, None] * depths[:, None]
        waves = (points[..., None, :] * 2.0 ** torch.arange(2)[:, None] * math.pi).flatten(-2)
        x = self.body(torch.cat([points, waves.sin(), waves.cos()], -1))
        opaque = 1 - torch.exp(-F.relu(self.density(x)).squeeze(-1) * 0.3)
        passed = torch.cumprod(torch.cat([torch.ones_like(opaque[:, :1]), 1 - opaque + 1e-6], -1), -1)[:, :-1]
        return ((opaque * passed)[..., None] * self.colour(x).sigmoid()).sum(1)


def nerf() -> Specimen:
    seen = torch.rand(5, 3)
    return Specimen(
        Field(),
        [torch.randn(5, 3), F.normalize(torch.randn(5, 3), dim=-1)],
        loss=lambda out: F.mse_loss(out, seen),
        rules=columns_then_rows(["body.0"], ["body.2"]),
    )


class DeepSet(nn.Module):
    """Members of a set, some missing; their sum, mean, spread and largest."""

    def __init__(self) -> None:
        super().__init__()
        self.member = nn.Sequential(nn.Linear(3, 16), nn.GELU(), nn.Linear(16, 8))
        self.whole = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, members: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        x = self.member(members)
        kept = x.masked_fill(~present[..., None], 0)
        largest = x.masked_fill(~present[..., None], -1e9).max(1).values
        mean = kept.sum(1) / present.sum(1, keepdim=True)
        return self.whole(torch.cat([kept.sum(1), mean, kept.std(1), largest], -1))


def deep_sets() -> Specimen:
    labels = torch.randint(2, (6,))
    present = torch.arange(5) < torch.tensor([5, 3, 2, 4, 1, 5])[:, None]
    return Specimen(
        DeepSet(),
        [torch.randn(6, 5, 3), present],
        loss=lambda out: F.cross_entropy(out, labels),
        rules=columns_then_rows(["*.0"], ["*.2"]),
    )


class GraphNet(nn.Module):
    """Messages along edges, added up at the nodes; then a softmax over the edges that meet (graph attention)."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(8, 8), nn.Linear(12, 8)
        self.score, self.out = nn.Linear(16, 1), nn.Linear(8, 3)

    def forward(self, nodes: torch.Tensor, start: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        sent = F.relu(self.message(torch.cat([nodes[start], nodes[end]], -1)))
        received = torch.zeros(nodes.shape[0], 8).index_add(0, end, sent)
        x = self.update(torch.cat([nodes, received], -1)).relu()
        weight = F.leaky_relu(self.score(torch.cat([x[start], x[end]], -1))).exp()
        total = torch.zeros(nodes.shape[0], 1).scatter_add(0, end[:, None], weight)
        shared = torch.zeros_like(x).index_add(0, end, x[start] * weight / total[end])
        return self.out(shared + x)


def graph_network() -> Specimen:
    """The edges are divided; every rank knows all nodes."""
    edges = torch.randint(6, (2, 10))
    labels = torch.randint(3, (6,))
    return Specimen(
        GraphNet(),
        [torch.randn(6, 4), edges[0], edges[1]],
        loss=lambda out: F.cross_entropy(out, labels),
        rules=columns_then_rows(["update"], ["out"]),
        batch=("start", "end"),
    )


class Fourier(nn.Module):
    """A few low frequencies are mixed, the rest is dropped (as in a Fourier neural operator)."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.back = nn.Linear(1, 6), nn.Linear(6, 1)
        self.real, self.imaginary = nn.Parameter(torch.randn(6, 6, 3) / 6), nn.Parameter(torch.randn(6, 6, 3) / 6)

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        x = self.lift(u).transpose(1, 2)
        low = torch.fft.rfft(x)[..., :3]
        mixed = torch.einsum("bif,iof->bof", low, torch.complex(self.real, self.imaginary))
        return self.back((F.gelu(torch.fft.irfft(mixed, n=x.shape[-1])) + x).transpose(1, 2))


def fourier_operator() -> Specimen:
    targets = torch.randn(5, 8, 1)
    return Specimen(Fourier(), [torch.randn(5, 8, 1)], loss=lambda out: (out - targets).norm() / targets.norm())


MODELS = (dlrm, matrix_factorisation, nerf, deep_sets, graph_network, fourier_operator)
