"""Losses that average elements: value and gradients equal the single device, however the elements are divided."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F

import spmd_lab as sl

if TYPE_CHECKING:
    from collections.abc import Callable

LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "mse_loss": F.mse_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
    "huber_loss": F.huber_loss,
    "soft_margin_loss": F.soft_margin_loss,
    "binary_cross_entropy": lambda x, y, reduction: F.binary_cross_entropy(
        x.sigmoid(), y.sigmoid(), reduction=reduction
    ),
    "weighted_cross_entropy": lambda x, y, reduction: F.binary_cross_entropy(
        x.sigmoid(), y.sigmoid(), weight=y.exp(), reduction=reduction
    ),
    "with_logits": lambda x, y, reduction: F.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction=reduction),
    "with_logits_weighted": lambda x, y, reduction: F.binary_cross_entropy_with_logits(
        x, y.sigmoid(), weight=y.exp(), pos_weight=y[0].exp(), reduction=reduction
    ),
}
MESH = sl.Mesh(dp=2, tp=4)


def expand(loss: Callable[..., torch.Tensor], reduction: str, placement: str, rows: int = 8) -> sl.Expansion:
    def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss(x * 1.5, y, reduction=reduction)

    x, y = torch.randn(rows, 12, requires_grad=True), torch.randn(rows, 12)
    return sl.expand(sl.trace(scaled, x, y), MESH, inputs={"x": placement, "y": placement})


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_divided_elements(name: str, reduction: str) -> None:
    expansion = expand(LOSSES[name], reduction, "b/dp d/tp")
    expansion.program.verify().raise_if_wrong()
    assert all(each.phase == "forward" for each in expansion.collectives), "no element has to travel"


@pytest.mark.parametrize(
    "placement", ["b/tp d", "b/dp/tp d", "b/tp/dp d", "b d/dp", "b d {sum: tp}", "b/dp d {sum: tp}"]
)
@pytest.mark.parametrize("name", ["mse_loss", "weighted_cross_entropy"])
def test_a_mean_of_uneven_shards_and_of_pieces(name: str, placement: str) -> None:
    """Five rows on two, four and eight ranks: some hold more, some nothing."""
    expand(LOSSES[name], "mean", placement, rows=5).program.verify().raise_if_wrong()


def test_a_target_that_is_stretched() -> None:
    x, y = torch.randn(6, 4, requires_grad=True), torch.randn(4)
    traced = sl.trace(lambda x, y: F.mse_loss(x, y.expand(6, 4)), x, y)
    sl.expand(traced, MESH, inputs={"x": "b/dp d/tp"}).program.verify().raise_if_wrong()


def test_the_pending_sum_is_reduced_once() -> None:
    expansion = expand(F.mse_loss, "mean", "b/dp d")
    assert [(each.kind, each.axes, each.payload_bytes) for each in expansion.collectives] == [
        ("all_reduce", ("dp",), 4)
    ]


def test_means_of_a_small_dtype_do_not_overflow() -> None:
    x, y = torch.full((512, 512), 2.0, dtype=torch.float16, requires_grad=True), torch.zeros(512, 512).half()
    traced = sl.trace(lambda x, y: F.mse_loss(x, y), x, y)
    sl.expand(traced, MESH, batch="dp").program.verify().raise_if_wrong()
