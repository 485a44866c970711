"""Convolutions over images, volumes and sound."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.specimen import Specimen, columns_then_rows

__all__ = ["MODELS"]


class ResidualBlock(nn.Module):
    """Two convolutions with batch norm, and a shortcut."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, channels, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(4, channels, 1, stride, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        y = self.norms[1](self.second(y))
        return F.relu(y + self.norms[2](self.shortcut(x)))


def resnet() -> Specimen:
    """Batch norm in train mode: its running statistics come out as new values."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), ResidualBlock(8, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip
    targets = torch.randint(3, (6,))
    return Specimen(model, [torch.randn(6, 3, 8, 8)], loss=lambda out: F.cross_entropy(out, targets))


class UNet(nn.Module):
    """Down and up again, with what was seen on the way; group norm; enlarged by interpolation."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.down, self.under = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.up, self.out = nn.Conv2d(16, 8, 3, padding=1), nn.Conv2d(8, 2, 1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = F.silu(self.norms[0](self.down(x)))
        deep = F.silu(self.norms[1](self.under(wide)))
        options = {} if self.mode == "nearest" else {"align_corners": False}
        back = F.interpolate(deep, scale_factor=2, mode=self.mode, **options)
        return self.out(F.silu(self.norms[2](self.up(torch.cat([wide, back], 1)))))


def _unet(mode: str, batch: int) -> Specimen:
    labels = torch.randint(2, (batch, 4, 4))
    labels[0, 0] = 255
    return Specimen(
        UNet(mode),
        [torch.randn(batch, 3, 4, 4)],
        loss=lambda out: F.cross_entropy(out, labels, ignore_index=255),
        rules={"down.weight": "o/tp ...", "down.bias": "o/tp", "under.weight": "o i/tp h w"},
    )


def unet() -> Specimen:
    return _unet("nearest", 5)


def unet_bilinear() -> Specimen:
    return _unet("bilinear", 6)


class ConvNext(nn.Module):
    """A depthwise convolution, a norm over channels, and a perceptron on each pixel; a scale for the branch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depthwise = nn.Conv2d(3, 8, 2, stride=2), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)
        self.scale, self.head = nn.Parameter(torch.full((8,), 0.5)), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return self.head((x + y.permute(0, 3, 1, 2)).mean((-2, -1)))


def convnext() -> Specimen:
    targets = torch.randint(3, (5,))
    return Specimen(
        ConvNext(),
        [torch.randn(5, 3, 8, 8)],
        loss=lambda out: F.cross_entropy(out, targets),
        rules=columns_then_rows(["up"], ["down"]) | {"depthwise.weight": "c/tp 1 h w", "depthwise.bias": "c/tp"},
    )


class Mixer(nn.Module):
    """Perceptrons along the patches, and along the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.norms = nn.Conv2d(3, 8, 4, stride=4), nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.tokens = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 4))
        self.channels = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.cut(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channels(self.norms[1](x))
        return self.head(x.mean(1))


def mlp_mixer() -> Specimen:
    targets = torch.rand(8, 3)
    return Specimen(
        Mixer(),
        [torch.randn(8, 3, 8, 8)],
        loss=lambda out: F.binary_cross_entropy_with_logits(out, targets),
        rules=columns_then_rows(["tokens.0", "channels.0"], ["tokens.2", "channels.2"]),
    )


def volumes() -> Specimen:
    """A net over volumes, with average pooling."""
    model = nn.Sequential(
        nn.Conv3d(1, 4, 3, padding=1), nn.InstanceNorm3d(4, affine=True), nn.LeakyReLU(0.1), nn.AvgPool3d(2),
        nn.Conv3d(4, 4, 2), nn.ELU(), nn.Flatten(), nn.Linear(4, 1),
    )  # fmt: skip
    targets = torch.randn(5, 1)
    return Specimen(model, [torch.randn(5, 1, 4, 4, 4)], loss=lambda out: F.l1_loss(out, targets))


def autoencoder() -> Specimen:
    """Transposed convolutions enlarge what convolutions made small."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.Hardswish(),
        nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Softplus(), nn.ConvTranspose2d(4, 1, 3, 2, 1, output_padding=1),
        nn.Sigmoid(),
    )  # fmt: skip
    image = torch.rand(6, 1, 8, 8)
    rules = {"0.weight": "o/tp ...", "0.bias": "o/tp", "4.weight": "i/tp ..."}
    return Specimen(model, [image], loss=lambda out: F.binary_cross_entropy(out, image), rules=rules)


class WaveNet(nn.Module):
    """Dilated causal convolutions with gates, over time; sums of all layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 4, 1)
        self.gates = nn.ModuleList(nn.Conv1d(4, 8, 2, dilation=2**n) for n in range(3))
        self.skips = nn.ModuleList(nn.Conv1d(4, 4, 1) for _ in range(3))
        self.last = nn.Conv1d(4, 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, total = self.first(x), 0
        for number, (gate, skip) in enumerate(zip(self.gates, self.skips, strict=True)):
            inside, outside = gate(F.pad(x, (2**number, 0))).chunk(2, 1)
            x = x + skip(inside.tanh() * outside.sigmoid())
            total = total + x
        return self.last(F.relu(total))


def wavenet() -> Specimen:
    levels = torch.randint(6, (5, 8))
    return Specimen(WaveNet(), [torch.randn(5, 1, 8)], loss=lambda out: F.cross_entropy(out, levels))


class Speech(nn.Module):
    """Convolutions over a spectrogram, then a linear layer for each frame."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, stride=(2, 1), padding=1), nn.BatchNorm2d(4)
        self.frames, self.out = nn.Linear(16, 32), nn.Linear(32, 7)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        power = sound.square().clamp(min=1e-5).log()
        x = F.hardtanh(self.norm(self.conv(power[:, None])), 0, 20)
        x = F.max_pool2d(x, (2, 1), padding=(1, 0), ceil_mode=True)
        x = x.permute(0, 3, 1, 2).flatten(2)
        return self.out(F.relu(self.frames(F.pad(x, (0, 16 - x.shape[-1]))))).log_softmax(-1)


def speech() -> Specimen:
    labels = torch.randint(7, (6, 5))
    labels[2, 3:] = -100
    return Specimen(
        Speech().eval(),
        [torch.randn(6, 8, 5)],
        loss=lambda out: F.nll_loss(out.transpose(1, 2), labels),
        rules=columns_then_rows(["frames"], ["out"]),
    )


MODELS = (resnet, unet, unet_bilinear, convnext, mlp_mixer, volumes, autoencoder, wavenet, speech)
