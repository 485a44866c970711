"""Tracing, expanding and rebuilding a GPT, against exporting it straight through DTensor parameters.

``python -m tests.benchmarks.expansion`` prints the table; ``--layers`` and ``--runs`` make it larger or smaller.
Both sides run in one process, in turn; ratios are of medians.
"""

from __future__ import annotations

import argparse
import gc
import time
from statistics import median
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

import spmd_lab as sl
from spmd_lab.demo import GPT, MEGATRON
from spmd_lab.expand.subgraph import forget_subgraphs
from tests.benchmarks.dtensor_peer import fake_world, time_export
from tests.benchmarks.row import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

WIDTH, HEADS, VOCABULARY, BATCH, LENGTH = 256, 8, 1024, 16, 64


def seconds(work: Callable[[], object]) -> float:
    """How long a piece of work takes, without what it costs to clear up after earlier work."""
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def gpt_and_inputs(layers: int, batch: int = BATCH) -> tuple[GPT, dict[str, torch.Tensor]]:
    """A GPT and a batch for it."""
    torch.manual_seed(0)
    model = GPT(layers, WIDTH, HEADS, VOCABULARY, LENGTH)
    tokens = torch.randint(VOCABULARY, (batch, LENGTH))
    return model, {"tokens": tokens, "targets": tokens.roll(-1, 1)}


def traced(model: GPT, inputs: Mapping[str, torch.Tensor]) -> sl.TracedGraph:
    """The traced training step."""
    targets = inputs["targets"]
    return sl.trace(model, inputs["tokens"], loss=lambda out: F.cross_entropy(out.flatten(0, 1), targets.flatten()))


def against_export(layers: int, runs: int, allowed_whole: Mapping[str, float]) -> list[Row]:
    """Both placements, against the peer: the whole way, from a cold cache, and again from a warm one."""
    model, inputs = gpt_and_inputs(layers)
    rows = []
    placings: dict[str, tuple[sl.Mesh, dict[str, object]]] = {
        "dp": (sl.Mesh(dp=8), {"batch": "dp"}),
        "tp": (sl.Mesh(tp=8), {"params": MEGATRON}),
    }
    for name, (mesh, placing) in placings.items():
        whole, cold, again, peer = [], [], [], []
        for _ in range(runs + 1):
            forget_subgraphs()
            gc.collect()  # the garbage of one run is no cost of the next
            start = time.perf_counter()
            graph = traced(model, inputs)
            middle = time.perf_counter()
            expansion = sl.expand(graph, mesh, **placing)
            sl.rebuild(expansion)
            end = time.perf_counter()
            whole.append(end - start)
            cold.append(end - middle)
            again.append(seconds(lambda: sl.rebuild(sl.expand(graph, mesh, **placing))))  # noqa: B023
            with fake_world(mesh.size):
                peer.append(time_export(model, expansion, inputs))
        timed = [median(times[1:]) for times in (whole, cold, again, peer)]
        label = f"{layers} layers, {name} on {mesh.size} ranks"
        if name in allowed_whole:
            rows.append(Row(f"{label}: trace + expand + rebuild", timed[0], timed[3], allowed_whole[name]))
        rows.append(Row(f"{label}: expand + rebuild, cold cache", timed[1], timed[3], 0.2))
        rows.append(Row(f"{label}: expand + rebuild, again", timed[2], timed[3], 0.2))
    return rows


def against_small_mesh(layers: int, runs: int) -> list[Row]:
    """A mesh of 8,192 ranks against one of 8: fake inputs, a batch that divides, cold caches."""
    model, _ = gpt_and_inputs(layers)
    with torch.device("meta"):
        inputs = {name: torch.zeros(8192, LENGTH, dtype=torch.int64) for name in ("tokens", "targets")}
    graph = traced(model, inputs)
    times: dict[int, list[float]] = {8: [], 8192: []}
    for _ in range(runs + 1):
        for size, found in times.items():
            forget_subgraphs()
            found.append(seconds(lambda: sl.rebuild(sl.expand(graph, sl.Mesh(dp=size), batch="dp"))))  # noqa: B023
    small, large = (median(found[1:]) for found in times.values())
    return [Row(f"{layers} layers, dp=8,192 against dp=8: expand + rebuild", large, small, 1.5)]


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--deep", type=int, default=48, help="layers of the deep model; 0 leaves it out")
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args(argv)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, medians of {given.runs} runs after one")
    print(f"{'':<58} {'ours':>10} {'peer':>10} {'ratio':>7}")
    for row in against_export(given.layers, given.runs, {"dp": 1.1, "tp": 1.0}):
        print(row, flush=True)
    for row in against_small_mesh(given.layers, given.runs):
        print(row, flush=True)
    for row in against_export(given.deep, max(1, given.runs // 2), {}) if given.deep else []:
        print(row, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
