"""The device of a rank and the back end of its group, and what launchers say of machines; no GPU is needed."""

from __future__ import annotations

import socket

import pytest
import torch
import torch.distributed as dist

from spmd_lab.errors import ArgumentError, RankError
from spmd_lab.run import engine_side
from spmd_lab.run.devices import rank_device
from spmd_lab.run.launcher import Launch, joined, launch_of


@pytest.mark.parametrize(
    ("local_rank", "local_size", "gpus", "expected"),
    [
        (0, 4, 4, ("nccl", 0)),
        (3, 4, 8, ("nccl", 3)),
        (3, 4, 2, ("gloo", 1)),
        (1, 2, 1, ("gloo", 0)),
        (1, 0, 8, ("gloo", 1)),  # how many share the GPUs is not known
    ],
)
def test_a_gpu_each_or_one_that_is_shared(
    local_rank: int, local_size: int, gpus: int, expected: tuple[str, int]
) -> None:
    assert rank_device("cuda", local_rank, local_size, gpus) == expected
    assert rank_device("cpu", local_rank, local_size, gpus) == ("gloo", None)


def test_a_gpu_that_is_not_there_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="there is no GPU on this machine"):
        rank_device("cuda", 0, 1, gpus=0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    _meeting_place(monkeypatch)
    with pytest.raises(ArgumentError, match="there is no GPU"), joined(Launch("torchrun", 0, 1, 0, 1), "cuda", 5.0):
        pass
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("told", "node", "local_size"),
    [("2(x3),1", "2", 2), ("2(x3),1", "3", 1), ("4", "0", 4), ("4", "1", 0), ("", "0", 0)],
)
def test_slurm_tells_how_many_tasks_a_node_runs(told: str, node: str, local_size: int) -> None:
    environment = {"SLURM_PROCID": "1", "SLURM_NTASKS": "7", "SLURM_LOCALID": "1", "SLURM_NODEID": node}
    launch = launch_of(environment | {"SLURM_STEP_TASKS_PER_NODE": told})
    assert launch == Launch("srun", 1, 7, 1, local_size)
    launch = launch_of(environment | {"SLURM_STEP_TASKS_PER_NODE": told, "SLURM_NTASKS_PER_NODE": "3"})
    assert launch == Launch("srun", 1, 7, 1, 3)


def test_a_group_that_is_there_is_not_taken_for_a_missing_address(monkeypatch: pytest.MonkeyPatch) -> None:
    _meeting_place(monkeypatch)
    launch = Launch("torchrun", 0, 1, 0, 1)
    with joined(launch, "cpu", 20.0):
        with pytest.raises(RankError, match="this process cannot join a group"), joined(launch, "cpu", 5.0):
            pass
        assert dist.is_initialized()
    assert not dist.is_initialized()
    monkeypatch.delenv("MASTER_PORT")
    with (
        pytest.raises(RankError, match="where the ranks meet: there is no MASTER_PORT"),
        joined(launch, "cpu", 5.0),
    ):
        pass


@pytest.mark.parametrize("address", [None, "127.0.0.1"])
def test_an_engine_that_leaves_is_as_it_was(address: str | None) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 2)
    try:
        place = engine_side.meet(address is None, address, 1, 20.0)
        engine_side.enter(0, ["here"], "cpu", place, 20.0)
        assert dist.get_world_size() == 1
        torch.set_num_threads(threads + 1)
        engine_side.leave()
        assert torch.get_num_threads() == threads + 2
        assert not dist.is_initialized()
    finally:
        engine_side.leave()
        torch.set_num_threads(threads)


def test_an_engine_leaves_the_group_of_its_user_alone() -> None:
    place = engine_side.meet(True, None, 1, 20.0)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ArgumentError, match="a process group of its own"):
            engine_side.enter(0, ["here"], "cpu", place, 20.0)
        engine_side.leave()
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def _meeting_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_PORT", str(listening.getsockname()[1]))
