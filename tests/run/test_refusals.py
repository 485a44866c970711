"""Every mistake that `distribute` and `for_rank` can see is refused on all ranks, in words that say what to try."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import spmd_lab as sl
from spmd_lab.errors import MeshError
from tests.run import refusal_cases as cases

if TYPE_CHECKING:
    from tests.run.pool import RankPool

TEXTS = {
    "size": [
        "Mesh(dp=2, tp=3) has 6 ranks, the process group has 2",
        "argument: mesh=Mesh(dp=2, tp=3)",
        "try: a mesh of as many ranks, or a DeviceMesh of some of them",
    ],
    "no mesh": ["str is no mesh", "try: sl.Mesh(dp=2), or a DeviceMesh"],
    "twice": ["the module is distributed already", "try: distribute the module that it was made of"],
    "inside": ["0 is distributed already, as DistributedModule", "try: distribute what is inside it"],
    "ddp": ["0 is distributed already, as DistributedDataParallel", "try: distribute what is inside it"],
    "dtensor": ["'weight' is a DTensor already", "try: distribute the module as it is on a single device"],
    "function": ["is no module", "argument: module", "try: a torch.nn.Module; a function has no state"],
    "meta": ["'weight' has no data yet: it is on meta", "try: initialise(), or to_empty(device=...) and a checkpoint"],
    "no reset": ["no reset_parameters in the module (Bare)", "try: initialise(init)"],
    "axis": ["has no axis 'dq'", "argument: batch='dq'", "did you mean 'dp'?"],
    "gradient": ["grad(weight) lies where weight does", "try: place 'weight' instead"],
    "pending state": ["parameter 'weight' cannot be held as a pending reduction", "f64[4, 6]{sum: dp}"],
    "pending whole": ["input 'input' is pending: it has no whole to pass", "argument: global_inputs=True"],
    "written": ["Writing writes into its input 'x'", "try: work on a clone inside forward"],
    "branch": [
        "Branching needs the value of a tensor to go on",
        "refusal_cases.py:",
        "return x if x.sum() > 0 else -x",
    ],
    "arguments": ["Linear cannot be called so", "try: its signature is Linear(input)"],
    "pending": ["pending='later' is unknown", 'try: "resolve" or "keep"'],
    "grad": ["grad='average' is unknown", 'try: "mean" or "sum"'],
    "other widths": ["distributes with other parameters and buffers than rank", "layout: rank 1: [('weight', (5, 6)"],
    "other placements": ["distributes with other placements than rank", "Shard(dim=1)"],
    "cast": ["'weight' is torch.float32 now, and was torch.float64", "try: cast the module before it is distributed"],
    "cut gradient": ["'input' is cut from a whole tensor", "layout: input: f64[8/dp, 6]", "try: pass a DTensor"],
}


def test_what_distribute_refuses(two_ranks: RankPool) -> None:
    for texts in two_ranks.run(cases.refusals):
        assert texts.keys() == TEXTS.keys()
        for what, parts in TEXTS.items():
            for part in parts:
                assert part in texts[what], f"{what}: {texts[what]}"


def test_a_program_is_bound_to_its_own_mesh_and_rank_alone(two_ranks: RankPool) -> None:
    for rank, texts in enumerate(two_ranks.run(cases.binding_refusals)):
        assert "the program is for Mesh(dp=2), the device mesh is Mesh(tp=2, device_type='cpu')" in texts["axes"]
        assert "try: init_device_mesh('cpu', (2,), mesh_dim_names=('dp',))" in texts["axes"]
        assert "the device mesh is Mesh(dp=1, tp=2, device_type='cpu')" in texts["sizes"]
        assert f"this process is rank {rank} of the device mesh" in texts["rank"]
        assert f"try: for_rank({rank}, device_mesh)" in texts["rank"]
        assert "dp=2 has no rank 2" in texts["no such rank"]


def test_axes_without_names(two_ranks: RankPool) -> None:
    two_ranks.run(cases.unnamed_mesh)


def test_without_a_process_group_distribute_says_what_is_missing() -> None:
    with pytest.raises(MeshError) as refused:
        sl.distribute(torch.nn.Linear(6, 4), sl.Mesh(dp=2), example=torch.zeros(8, 6), batch="dp")
    assert str(refused.value).splitlines() == [
        "there is no process group to run on",
        "  argument: mesh",
        "  try: torch.distributed.init_process_group(), in processes started by torchrun or another launcher",
    ]
