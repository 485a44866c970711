"""Plain attributes that programs read are kept for as long as the programs are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

import spmd_lab as sl
from spmd_lab.run import plans

if TYPE_CHECKING:
    import pytest


class Tabled(torch.nn.Module):
    """Reads a tensor that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.held = {"table": torch.zeros(2)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.held["table"]


def test_shards_go_with_the_plans_that_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "_MOST", 1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = Tabled()
        distributed = sl.distribute(model, sl.Mesh(dp=1), example=torch.zeros(2, 4), batch="dp")
        for rows in range(3, 8):
            model.held["table"] = torch.full((2,), float(rows))
            x = torch.randn(rows, 4)
            torch.testing.assert_close(distributed(x), model.layer(x) + rows)
            assert len(distributed._plans.constants) == 1
    finally:
        dist.destroy_process_group()
