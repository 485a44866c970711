"""Batch normalisation of a divided batch is that of the whole batch: outputs, running statistics and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spmd_lab as sl
from spmd_lab.rules import batch_norm
from tests.rules.every_way import run_every_way

MESH = sl.Mesh(dp=2, tp=4)
aten = torch.ops.aten
LAYOUTS = ["n/tp ...", "n/tp/dp ...", "n/dp c h/tp w", "n/dp c/tp h w"]


class Normalised(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        for parameter in norm.parameters():
            nn.init.normal_(parameter)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x * 1.5).sigmoid()


def expand(norm: nn.Module, layout: str, rows: int = 5, dtype: torch.dtype = torch.float32) -> sl.Expansion:
    x = torch.randn(rows, 4, 3, 2, dtype=dtype, requires_grad=True)
    return sl.expand(sl.trace(Normalised(norm), x), MESH, inputs={"x": layout}, unsupported="error")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["running", "batch only", "no weight", "eval"])
def test_a_divided_batch(kind: str, layout: str) -> None:
    norm = nn.BatchNorm2d(4, affine=kind != "no weight", track_running_stats=kind != "batch only")
    expansion = expand(norm.train(kind != "eval"), layout)
    expansion.program.verify().raise_if_wrong()
    if "c/tp" not in layout:
        assert {each.kind for each in expansion.collectives} == {"all_reduce"}, "no activation travels"


def test_statistics_come_out_whole_and_moved() -> None:
    """Running statistics are those of the single device after the same batch."""
    norm = nn.BatchNorm2d(4, momentum=0.3)
    expansion = expand(norm, "n/tp ...")
    assert {name for name in expansion.layouts if "running" in name}
    assert all(expansion.layouts[name].is_replicated for name in expansion.layouts if "running" in name)
    statistics = [layout for layout in expansion.output_layouts if layout is not None and layout.global_shape == (4,)]
    assert len(statistics) >= 2
    assert all(layout.is_replicated for layout in statistics)


@pytest.mark.parametrize("rows", [1, 2])
def test_ranks_without_a_row(rows: int) -> None:
    expand(nn.BatchNorm2d(4), "n/tp ...", rows).program.verify().raise_if_wrong()


@pytest.mark.parametrize("layout", ["n/tp ...", "n c/tp h w", "n c h w"])
def test_bfloat16(layout: str) -> None:
    expand(nn.BatchNorm2d(4).bfloat16(), layout, dtype=torch.bfloat16).program.verify().raise_if_wrong()


@pytest.mark.parametrize("layout", ["n/tp ...", "n/dp c/tp h w", "n c h/tp w"])
@pytest.mark.parametrize("norm", [nn.InstanceNorm2d(4, affine=True), nn.InstanceNorm2d(4), nn.GroupNorm(2, 4)])
def test_relatives(norm: nn.Module, layout: str) -> None:
    """Instance norm is a batch norm of a view; group norm has rules of its own."""
    x = torch.randn(5, 4, 3, 2, requires_grad=True)
    sl.expand(sl.trace(Normalised(norm), x), MESH, inputs={"x": layout}).program.verify().raise_if_wrong()


def test_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    x, scale, shift, mean, var = torch.randn(5, 3, 2), *torch.randn(3, 3), torch.rand(3) + 0.5

    def forward(*tensors: torch.Tensor) -> object:
        return aten._native_batch_norm_legit_functional(*tensors, True, 0.1, 1e-5)

    def update(*tensors: torch.Tensor) -> object:
        return aten._batch_norm_with_update_functional(*tensors, 0.1, 1e-5)[:3]

    assert run_every_way(monkeypatch, batch_norm, forward, [x, scale, shift, mean, var]) == 12
    assert run_every_way(monkeypatch, batch_norm, update, [x, scale, shift, mean, var]) == 12


@pytest.mark.parametrize("training", [True, False])
def test_every_way_backward(monkeypatch: pytest.MonkeyPatch, training: bool) -> None:
    grad, x, scale, mean, var = torch.randn(5, 3, 2), torch.randn(5, 3, 2), *torch.randn(2, 3), torch.rand(3) + 0.5

    def backward(*tensors: torch.Tensor) -> object:
        grad, x, weight, running_mean, running_var, mean, scale = tensors
        mask = [True, True, True]
        return aten.native_batch_norm_backward(
            grad, x, weight, running_mean, running_var, mean, scale, training, 1e-5, mask
        )

    assert run_every_way(monkeypatch, batch_norm, backward, [grad, x, scale, mean, var, mean, var]) == 20
