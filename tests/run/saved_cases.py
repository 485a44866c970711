"""A program that was saved by one process and is run by others."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import spmd_lab as sl
from tests.run.on_rank import world_mesh


class Reader(nn.Module):
    """An embedding divided by rows, uneven, and a head: ranks run different graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, 6), nn.Linear(6, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(tokens)).log_softmax(-1)


def program_of(mesh: sl.Mesh) -> sl.Program:
    torch.manual_seed(3)
    targets = torch.arange(6) % 5
    return sl.spmd_expand(
        Reader(),
        torch.tensor([6, 0, 3, 3, 5, 1]),
        mesh=mesh,
        loss=lambda out: F.nll_loss(out, targets),
        params={"table.weight": f"v/{mesh.axes[0]} d"},
    ).program


def runs_as_saved(path: str) -> str:
    """Load, bind and run on this rank; what comes out is what the program of this rank gives. Its digest."""
    size, rank = dist.get_world_size(), dist.get_rank()
    mesh = world_mesh(tp=size)
    saved = sl.load(path)
    program = program_of(sl.Mesh(tp=size))
    generator = torch.Generator().manual_seed(11)
    flat = []
    for port in saved.inputs:
        assert port.layout is not None
        whole = (
            torch.randn(port.layout.global_shape, generator=generator)
            if port.layout.dtype.is_floating_point
            else torch.randint(5, port.layout.global_shape, generator=generator)
        )
        flat.append(whole[port.layout.slices(rank)].contiguous())
    expected = program.for_rank(rank, mesh)(*flat)
    for found, wanted in zip(saved.for_rank(rank, mesh)(*flat), expected, strict=True):
        assert torch.equal(found, wanted)
    return saved.digest
