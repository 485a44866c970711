"""Training steps of a GPT whose parameters rest divided over two gloo ranks, against FSDP: time and memory.

``python -m tests.benchmarks.at_rest`` prints the table; ``--steps`` and ``--widths`` make it larger or smaller. Sides,
steps and clock are those of `tests.benchmarks.training`. Memory is what a rank holds at most: parameters and the state
of the optimizer before a step, and all that the step allocates on top of it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

import spmd_lab as sl
from spmd_lab.demo import GPT
from tests.benchmarks.expansion import BATCH, HEADS, LENGTH, VOCABULARY
from tests.benchmarks.row import Row
from tests.benchmarks.training import LAYERS, RANKS, batch, medians, step_of

if TYPE_CHECKING:
    from collections.abc import Callable


def at_rest(width: int, steps: int) -> dict[str, tuple[float, float]]:
    """One rank's part: milliseconds and MiB of ours and of FSDP, block by block."""
    tokens, targets = batch()
    mine = slice(dist.get_rank() * BATCH // RANKS, (dist.get_rank() + 1) * BATCH // RANKS)
    torch.manual_seed(0)
    plain, theirs = (GPT(LAYERS, width, HEADS, VOCABULARY, LENGTH) for _ in range(2))
    ours = sl.distribute(plain, sl.Mesh(dp=RANKS), example=tokens, batch="dp", stored=sl.fsdp("dp"))
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",))
    for module in (*theirs.blocks, theirs):
        fully_shard(module, mesh=mesh)
    models: dict[str, nn.Module] = {"ours": ours, "peer": theirs}
    sides = {name: step_of(model, tokens[mine], targets[mine]) for name, model in models.items()}
    taken = medians(sides, steps)
    return {name: (taken[name], held(models[name]) + allocated(step)) for name, step in sides.items()}


def held(model: nn.Module) -> float:
    """MiB of the shards of parameters."""
    return sum(each.to_local().nbytes for each in model.parameters() if isinstance(each, DTensor)) / 2**20


def allocated(step: Callable[[], object]) -> float:
    """MiB that a step has allocated and not freed yet, at most."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(file))
        events = [each for each in json.loads(file.read_text())["traceEvents"] if each.get("name") == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda each: each["ts"]):
        now += event["args"]["Bytes"]
        most = max(most, now)
    return most / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256, 1024])
    chosen = parser.parse_args()
    with sl.Ranks(RANKS, device="cpu") as ranks:
        for width in chosen.widths:
            told = ranks.run(at_rest, width, chosen.steps)[0]
            for index, (what, unit) in enumerate((("time", "ms"), ("memory", "MiB"))):
                line = f"parameters divided at rest, width {width}, {what} against FSDP"
                print(Row(line, told["ours"][index], told["peer"][index], 1.05, unit), flush=True)


if __name__ == "__main__":
    main()
