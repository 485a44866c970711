"""Objectives that compare rows of the batch with one another, several networks, or draws of noise."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from tests.models.specimen import Specimen, columns_then_rows

__all__ = ["MODELS"]


def _mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Clip(nn.Module):
    """Images and texts whose pairs must lie close: every row is compared with all others."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.words, self.text = _mlp(12, 16, 8), nn.EmbeddingBag(20, 8, mode="mean"), nn.Linear(8, 8)
        self.sharpness = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        x, y = F.normalize(self.image(image), dim=-1), F.normalize(self.text(self.words(text)), dim=-1)
        return self.sharpness.exp() * x @ y.T


def clip() -> Specimen:
    def both_ways(out: torch.Tensor) -> torch.Tensor:
        own = torch.arange(out.shape[0])
        return (F.cross_entropy(out, own) + F.cross_entropy(out.T, own)) / 2

    return Specimen(
        Clip(),
        [torch.randn(6, 12), torch.randint(20, (6, 5))],
        loss=both_ways,
        rules=columns_then_rows(["image.0"], ["image.2"]),
    )


class SimClr(nn.Module):
    """Two views of each image; every view must find the other one among all."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = _mlp(12, 16), _mlp(16, 16, 8)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        z = F.normalize(self.head(self.encoder(torch.cat([first, second]))), dim=-1)
        likeness = z @ z.T / 0.5
        return likeness.masked_fill(torch.eye(z.shape[0], dtype=torch.bool), -math.inf)


def simclr() -> Specimen:
    x = torch.randn(5, 12)
    return Specimen(
        SimClr(),
        [x + 0.1 * torch.randn(5, 12), x + 0.1 * torch.randn(5, 12)],
        loss=lambda out: F.cross_entropy(out, torch.arange(10).roll(5)),
        rules=columns_then_rows(["head.0"], ["head.2"]),
    )


class Gan(nn.Module):
    """One step of both: the generator through a critic, the critic on a detached forgery."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = _mlp(4, 16, 12), _mlp(12, 16, 1)

    def forward(self, noise: torch.Tensor, real: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        forged = self.generator(noise).tanh()
        fixed = {name: value.detach() for name, value in self.critic.named_parameters()}
        fooled = F.softplus(-functional_call(self.critic, fixed, (forged,))).mean()
        caught = F.softplus(self.critic(forged.detach())).mean() + F.softplus(-self.critic(real)).mean()
        return fooled, caught


def gan() -> Specimen:
    return Specimen(
        Gan(),
        [torch.randn(5, 4), torch.randn(5, 12)],
        loss=lambda out: out[0] + out[1],
        rules=columns_then_rows(["*.0"], ["*.2"]),
    )


class Vae(nn.Module):
    """The noise of the reparametrisation is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = _mlp(12, 16, 8), _mlp(4, 16, 12)

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        return self.decoder(mean + noise * torch.exp(0.5 * log_variance)), mean, log_variance


def vae() -> Specimen:
    x = torch.rand(5, 12)

    def bound(out: tuple[torch.Tensor, ...]) -> torch.Tensor:
        decoded, mean, log_variance = out
        distance = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum()
        return F.binary_cross_entropy_with_logits(decoded, x, reduction="sum") + distance

    rules = columns_then_rows(["*.0"], ["*.2"])
    return Specimen(Vae(), [x, torch.randn(5, 4)], loss=bound, rules=rules)


class Distillation(nn.Module):
    """A student learns from a teacher that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = _mlp(12, 32, 5).requires_grad_(requires_grad=False), _mlp(12, 16, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            known = self.teacher(x)
        return self.student(x), known


def distillation() -> Specimen:
    labels = torch.randint(5, (6,))

    def both(out: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        student, teacher = (each / 2 for each in out)
        soft = F.kl_div(student.log_softmax(-1), teacher.softmax(-1), reduction="batchmean")
        return 4 * soft + F.cross_entropy(out[0], labels)

    rules = columns_then_rows(["*.0"], ["*.2"])
    return Specimen(Distillation(), [torch.randn(6, 12)], loss=both, rules=rules)


class HyperNetwork(nn.Module):
    """A network that gives another its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.task, self.weights = nn.Parameter(torch.randn(3)), _mlp(3, 16, 8 * 6 + 6)
        self.frame = [nn.Linear(8, 6)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.weights(self.task)
        return functional_call(self.frame[0], {"weight": made[:48].view(6, 8), "bias": made[48:]}, (x,))


def hypernetwork() -> Specimen:
    targets = torch.randn(5, 6)
    return Specimen(
        HyperNetwork(),
        [torch.randn(5, 8)],
        loss=lambda out: F.mse_loss(out, targets),
        rules=columns_then_rows(["weights.0"], ["weights.2"]),
    )


class DeepQ(nn.Module):
    """Values of actions by two heads; the target network gives the best next one."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.value, self.advantage = _mlp(6, 16), nn.Linear(16, 1), nn.Linear(16, 4)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        x = self.body(state).relu()
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(-1, keepdim=True)


def deep_q() -> Specimen:
    state, after = torch.randn(6, 6), torch.randn(6, 6)
    action, reward = torch.randint(4, (6, 1)), torch.randn(6)
    model = DeepQ()

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def forward(
            self, state: torch.Tensor, action: torch.Tensor, reward: torch.Tensor, after: torch.Tensor
        ) -> torch.Tensor:
            with torch.no_grad():
                best = reward + 0.9 * self.net(after).max(-1).values
            return self.net(state).gather(1, action).squeeze(1) - best

    return Specimen(
        Step(),
        [state, action, reward, after],
        loss=lambda out: F.huber_loss(out, torch.zeros_like(out)),
        rules={"net.body.0.weight": "o/tp i", "net.body.0.bias": "o/tp", "net.advantage.weight": "o i/tp"},
    )


MODELS = (clip, simclr, gan, vae, distillation, hypernetwork, deep_q)
