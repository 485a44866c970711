"""Training steps of a GPT on two gloo ranks, against DDP and against eager DTensor.

``python -m tests.benchmarks.training`` prints the table; ``--steps`` and ``--widths`` make it larger or smaller.
All sides run in the same processes, a step of each in turn; ratios are of medians. A step is forward, loss, backward
and an SGD step; the clock stops when both ranks are through.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import spmd_lab as sl
from spmd_lab.demo import GPT, MEGATRON
from tests.benchmarks.dtensor_peer import distributed_copy
from tests.benchmarks.expansion import BATCH, HEADS, LENGTH, VOCABULARY
from tests.benchmarks.row import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RANKS, LAYERS = 2, 4


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets of the whole batch."""
    tokens = torch.arange(BATCH * LENGTH).reshape(BATCH, LENGTH).mul(7919) % VOCABULARY
    return tokens, tokens.roll(-1, 1)


def cross_entropy(out: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean over the tokens of a batch."""
    return F.cross_entropy(out.flatten(0, 1), targets.flatten())


def step_of(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> Callable[[], object]:
    """One training step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(tokens), targets).backward()
        optimizer.step()

    return step


def medians(sides: Mapping[str, Callable[[], object]], steps: int) -> dict[str, float]:
    """The median time of a step of each side, in milliseconds; they take turns."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(steps + 3):
        for name, step in sides.items():
            dist.barrier()
            start = time.perf_counter()
            step()
            dist.barrier()
            if turn >= 3:
                taken[name].append(time.perf_counter() - start)
    return {name: 1e3 * median(each) for name, each in taken.items()}


def data_parallel(width: int, steps: int) -> dict[str, float]:
    """One rank's part: ours and DDP."""
    tokens, targets = batch()
    mine = slice(dist.get_rank() * BATCH // RANKS, (dist.get_rank() + 1) * BATCH // RANKS)
    torch.manual_seed(0)
    ours = sl.distribute(GPT(LAYERS, width, HEADS, VOCABULARY, LENGTH), sl.Mesh(dp=RANKS), example=tokens, batch="dp")
    peer = DistributedDataParallel(GPT(LAYERS, width, HEADS, VOCABULARY, LENGTH))
    sides = {"ours": step_of(ours, tokens[mine], targets[mine]), "peer": step_of(peer, tokens[mine], targets[mine])}
    return medians(sides, steps)


def tensor_parallel(width: int, steps: int) -> dict[str, float]:
    """One rank's part: ours, every parameter a DTensor, and layers parallelised by hand with the rest local."""
    tokens, targets = batch()
    torch.manual_seed(0)
    ours = sl.distribute(
        GPT(LAYERS, width, HEADS, VOCABULARY, LENGTH),
        sl.Mesh(tp=RANKS),
        example=tokens,
        params=MEGATRON,
        outputs={"out": [Replicate()]},
    )
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))
    by_hand = GPT(LAYERS, width, HEADS, VOCABULARY, LENGTH)
    plan = dict.fromkeys(["q", "k", "v", "up"], ColwiseParallel()) | dict.fromkeys(["o", "down"], RowwiseParallel())
    for block in by_hand.blocks:
        block.heads //= RANKS  # type: ignore[operator, assignment]
        block.split = partial(_split_local, block)  # type: ignore[assignment]
        parallelize_module(block, mesh, plan)
    everywhere = DTensorGPT(GPT(LAYERS, width, HEADS, VOCABULARY, LENGTH), ours.expansion, mesh)
    sides = {"ours": ours, "peer": everywhere, "by hand": by_hand}
    with implicit_replication():  # of the positions, which the model makes itself
        return medians({name: step_of(model, tokens, targets) for name, model in sides.items()}, steps)


class DTensorGPT(nn.Module):
    """A GPT whose parameters are DTensors, in the same placements as ours; DTensor dispatches every operator."""

    def __init__(self, model: nn.Module, expansion: sl.Expansion, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh = mesh
        self.model = distributed_copy(model, expansion, mesh)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out = self.model(DTensor.from_local(tokens, self.mesh, [Replicate()], run_check=False))
        return out.redistribute(placements=[Replicate()]).to_local()


def _split_local(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The heads of this rank."""
    rows, time_, width = x.shape
    heads: int = block.heads  # type: ignore[assignment]
    return x.view(rows, time_, heads, width // heads).transpose(1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--only", choices=("dp", "tp"), default=None)
    chosen = parser.parse_args()
    with sl.Ranks(RANKS, device="cpu") as ranks:
        for width in chosen.widths:
            if chosen.only != "tp":
                told = ranks.run(data_parallel, width, chosen.steps)[0]
                what = f"data parallel, width {width}, against DDP"
                print(Row(what, told["ours"], told["peer"], 1.1 if width < 256 else 1.0, "ms"), flush=True)
            if chosen.only != "dp":
                told = ranks.run(tensor_parallel, width, chosen.steps)[0]
                what = f"tensor parallel, width {width}, against"
                print(Row(f"{what} DTensor", told["ours"], told["peer"], 0.5, "ms"), flush=True)
                print(Row(f"{what} layers by hand", told["ours"], told["by hand"], 1.0, "ms"), flush=True)


if __name__ == "__main__":
    main()
