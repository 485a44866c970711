"""Operators that fail on tensors without elements run on every other rank, and the empty one agrees with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import spmd_lab as sl
from spmd_lab.rules.from_nothing import refuses_nothing

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rfft": torch.fft.rfft,
    "fft2": torch.fft.fft2,
    "irfft": torch.fft.irfft,
    "max": torch.max,
    "min": torch.min,
    "amax": lambda x: x.amax(0),
    "amin": lambda x: x.amin((0, 2)),
    "select": lambda x: x.select(1, 0),
    "largest integer": lambda x: (x * 100).long().max(),
    "any": lambda x: (x > 0).any(0),
}


@pytest.mark.parametrize("rows", [5, 2, 1])
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_empty_shard_changes_nothing(name: str, rows: int) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, 6, 7, requires_grad=True)
    expansion = sl.spmd_expand(PROGRAMS[name], x, mesh=sl.Mesh(x=4), batch="x")
    expansion.program.verify().raise_if_wrong()
    assert [step.fallback for step in expansion.steps if step.fallback] == []


def test_others_run_on_nothing_as_on_anything() -> None:
    assert refuses_nothing(torch.ops.aten.amax.default)
    assert not refuses_nothing(torch.ops.aten.sum.default)
    graphs = sl.spmd_expand(lambda x: x.sin(), torch.ones(5, 2), mesh=sl.Mesh(x=4), batch="x").program
    names = [[node.name for node in graphs.for_rank(rank).graph.nodes] for rank in range(4)]
    assert names[0] == names[3]
