"""Bags of embeddings, divided in every way that their rules offer, equal the whole."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import spmd_lab as sl
from spmd_lab.rules import embedding_bag
from tests.rules.every_way import run_every_way

aten = torch.ops.aten
MODES = {"sum": 0, "mean": 1, "max": 2}


def bags() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A table of seven rows, nine look-ups, and four bags of them: one is empty, one crosses from rank to rank."""
    return torch.randn(7, 6), torch.randint(7, (9,)), torch.tensor([0, 1, 1, 7])


@pytest.mark.parametrize("padding", [-1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_every_way(monkeypatch: pytest.MonkeyPatch, mode: str, padding: int) -> None:
    table, indices, offsets = bags()
    indices[4] = indices[8] = 2

    def op(table: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> object:
        return aten._embedding_bag(table, indices, offsets, False, MODES[mode], padding_idx=padding)

    assert run_every_way(monkeypatch, embedding_bag, op, [table, indices, offsets])


def test_every_way_with_a_weight_for_each_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def op(table: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor) -> object:
        return aten._embedding_bag(table, indices, offsets, False, 0, False, weights, True)

    table, indices, _ = bags()
    tensors = [table, indices, torch.tensor([0, 1, 1, 7, 9]), torch.rand(9)]
    assert run_every_way(monkeypatch, embedding_bag, op, tensors)


@pytest.mark.parametrize("mode", MODES)
def test_every_way_of_the_backward(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    table, indices, offsets = bags()
    out, *state = aten._embedding_bag(table, indices, offsets, False, MODES[mode])

    def op(grad: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, *state: torch.Tensor) -> object:
        return aten._embedding_bag_backward(grad, indices, offsets, *state, 7, False, MODES[mode], False, None)

    assert run_every_way(monkeypatch, embedding_bag, op, [torch.randn_like(out), indices, offsets, *state])


@pytest.mark.parametrize("placement", ["v/tp d", "v d/tp", "v/dp d/tp", "v/tp/dp d"])
@pytest.mark.parametrize("mode", MODES)
def test_a_table_however_it_is_divided(mode: str, placement: str) -> None:
    """Rows of ids that are divided by the batch; six on two, four and eight ranks."""
    ids = torch.randint(7, (6, 3))
    ids[0] = 3
    model = torch.nn.EmbeddingBag(7, 4, mode=mode, padding_idx=3)
    traced = sl.trace(model, ids, loss=lambda out: F.mse_loss(out, torch.ones_like(out)))
    expansion = sl.expand(traced, sl.Mesh(dp=2, tp=4), batch="dp", params={"weight": placement}, unsupported="error")
    expansion.program.verify().raise_if_wrong()
