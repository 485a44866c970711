"""The memory of a rank that trains a GPT, at its peak, against DDP.

``python -m tests.benchmarks.memory`` prints the table. Each side trains in processes of its own; what is compared is
the most that the process of rank 0 held during its last steps, and in a second line the same less what it held before
there was a model. Linux alone tells it.
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import spmd_lab as sl
from spmd_lab.demo import GPT
from tests.benchmarks.expansion import BATCH, HEADS, LENGTH, VOCABULARY
from tests.benchmarks.row import Row
from tests.benchmarks.training import LAYERS, RANKS, batch, step_of

STEPS = 5


def held(which: str) -> float:
    """Memory of this process in MB: "VmRSS" is what it holds, "VmHWM" the most since the mark was put."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(which)).split()[1]) / 1024


def put_mark() -> None:
    """Let the most be counted from now on."""
    Path("/proc/self/clear_refs").write_text("5")


def peak(width: int, ours: bool) -> tuple[float, float]:
    """One rank's part: what it held before there was a model, and the most that a step holds."""
    before = held("VmRSS")
    tokens, targets = batch()
    mine = slice(dist.get_rank() * BATCH // RANKS, (dist.get_rank() + 1) * BATCH // RANKS)
    torch.manual_seed(0)
    model: torch.nn.Module = GPT(LAYERS, width, HEADS, VOCABULARY, LENGTH)
    if ours:
        model = sl.distribute(model, sl.Mesh(dp=RANKS), example=tokens, batch="dp")
    else:
        model = DistributedDataParallel(model)
    step = step_of(model, tokens[mine], targets[mine])
    most = []
    for _ in range(STEPS):
        gc.collect()
        put_mark()
        step()
        most.append(held("VmHWM"))
    return before, max(most[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256, 1024])
    for width in parser.parse_args().widths:
        told = {}
        for ours in (True, False):
            with sl.Ranks(RANKS, device="cpu") as ranks:
                told[ours] = ranks.run(peak, width, ours)[0]
        (ours_before, ours_most), (peer_before, peer_most) = told[True], told[False]
        what = f"memory, data parallel, width {width}"
        print(Row(f"{what}, whole process", ours_most, peer_most, 1.05, "MB"), flush=True)
        print(Row(f"{what}, of the training", ours_most - ours_before, peer_most - peer_before, 1.05, "MB"), flush=True)


if __name__ == "__main__":
    main()
