"""Cross-entropy equals the single device: whatever a rank ignores, items or classes divided, every reduction."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import spmd_lab as sl

MESH = sl.Mesh(dp=2, tp=4)
REDUCTIONS = ["mean", "sum", "none"]
LAYOUTS = ["a/tp b", "a/dp b/tp", "a/tp/dp b", "a b/tp/dp"]
WEIGHT = torch.tensor([0.3, 1.0, 2.0, 0.1, 0.7, 1.5])
TARGETS = {
    "all count": torch.tensor([0, 1, 5, 3, 2]),
    "some ignored": torch.tensor([0, -100, 5, -100, 2]),
    "one rank ignores all": torch.tensor([-100, -100, 1, 2, 4]),
    "all ignored": torch.tensor([-100] * 5),
}


def check(loss: object, *tensors: torch.Tensor, layout: str) -> sl.Expansion:
    expansion = sl.expand(sl.trace(loss, *tensors), MESH, inputs={"x": layout}, unsupported="error")
    expansion.program.verify().raise_if_wrong()
    return expansion


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ignored", TARGETS)
def test_classes_as_targets(ignored: str, layout: str) -> None:
    def losses(x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, ...]:
        plain = [F.cross_entropy(x * 1.5, target, reduction=reduction) for reduction in REDUCTIONS]
        return (*plain, *(F.cross_entropy(x, target, weight=WEIGHT, reduction=reduction) for reduction in REDUCTIONS))

    check(losses, torch.randn(5, 6, requires_grad=True), TARGETS[ignored], layout=layout)


@pytest.mark.parametrize("layout", ["a/tp b", "a/dp b/tp"])
@pytest.mark.parametrize("ignored", ["all count", "one rank ignores all"])
def test_label_smoothing(ignored: str, layout: str) -> None:
    def losses(x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(
            F.cross_entropy(x * 1.5, target, weight=WEIGHT, label_smoothing=0.1, reduction=reduction)
            for reduction in REDUCTIONS
        )

    check(losses, torch.randn(5, 6, requires_grad=True), TARGETS[ignored], layout=layout)


@pytest.mark.parametrize("layout", ["a/tp/dp b", "a/dp b/tp"])
def test_probabilities_as_targets_and_absolute_differences(layout: str) -> None:
    def losses(x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, ...]:
        soft = [F.cross_entropy(x * 1.5, target, WEIGHT, label_smoothing=0.1, reduction=each) for each in REDUCTIONS]
        return (*soft, *(F.l1_loss(x * 1.5, target, reduction=each) for each in REDUCTIONS))

    check(losses, torch.randn(5, 6, requires_grad=True), torch.rand(5, 6).softmax(1), layout=layout)


@pytest.mark.parametrize("layout", ["a/tp c h w", "a c h/tp w", "a c/tp h w", "a/dp c h/tp w", "a c/tp h w/dp"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_images(reduction: str, layout: str) -> None:
    target = torch.randint(0, 6, (5, 3, 2))
    target[:2] = 255
    target[:, 1] = 255

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x * 1.5, target, weight=WEIGHT, ignore_index=255, reduction=reduction)

    check(loss, torch.randn(5, 6, 3, 2, requires_grad=True), target, layout=layout)


def test_a_mean_is_not_a_number_only_where_it_is_none_on_one_device() -> None:
    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, target)

    x = torch.randn(5, 6, requires_grad=True)
    expansion = check(loss, x, TARGETS["one rank ignores all"], layout="a/tp b")
    assert F.cross_entropy(x, TARGETS["one rank ignores all"]).isfinite()
    assert all(each.payload_bytes <= 8 for each in expansion.collectives), "the loss and the total weight travel"


def test_a_vocabulary_divided_over_eight_ranks() -> None:
    """50,257 classes over 8 ranks: three numbers a row travel, and no logits."""
    mesh = sl.Mesh(tp=8)
    x, target = torch.randn(5, 50_257, requires_grad=True), torch.tensor([0, 50_256, -100, 43_974, 43_975])
    traced = sl.trace(lambda x, target: F.cross_entropy(x, target), x, target)
    expansion = sl.expand(traced, mesh, inputs={"x": "a b/tp"}, unsupported="error")
    expansion.program.verify().raise_if_wrong()
    assert {each.kind for each in expansion.collectives} == {"all_reduce"}
    assert max(each.payload_bytes for each in expansion.collectives) == 5 * 4
    assert str(expansion.layouts["nll_loss_backward"]) == "f32[5, 50257/tp]"


def test_one_item() -> None:
    check(
        lambda x, target: F.cross_entropy(x, target), torch.randn(6, requires_grad=True), torch.tensor(2), layout="a/tp"
    )
