"""Which rank this process is, when a launcher has started it: torchrun, mpirun or srun."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from spmd_lab.errors import RankError
from spmd_lab.run import rank_work
from spmd_lab.run.devices import rank_device

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Launch", "joined", "launch_of"]

_MPI = "OMPI_COMM_WORLD_"
_NAMES = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("mpirun", f"{_MPI}RANK", f"{_MPI}SIZE", f"{_MPI}LOCAL_RANK", f"{_MPI}LOCAL_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)
"""Launchers, and the variables in which each says the rank, the size, and both on this machine."""


@dataclass(frozen=True)
class Launch:
    """A place among the processes of a launcher.

    Parameters
    ----------
    launcher : str
        "torchrun" (or what sets the same variables), "mpirun" or "srun".
    rank, size : int
        Which of how many.
    local_rank, local_size : int
        The same on this machine; a size of 0 where the launcher does not say.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int

    @property
    def on_one_machine(self) -> bool:
        """Whether all ranks are here."""
        return self.local_size == self.size


def launch_of(environment: Mapping[str, str]) -> Launch | None:
    """The place that a launcher gave to this process; None where it was started alone.

    Examples
    --------
    >>> launch_of({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    Launch(launcher='torchrun', rank=1, size=4, local_rank=1, local_size=2)
    >>> launch_of({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}) is None  # a shell within a job
    True
    """
    for launcher, rank, size, local_rank, local_size in _NAMES:
        if rank in environment and size in environment:
            if launcher != "torchrun" and int(environment[size]) == 1:
                continue
            here = environment.get(local_size) or _tasks_here(environment)
            return Launch(
                launcher,
                int(environment[rank]),
                int(environment[size]),
                int(environment.get(local_rank, environment[rank])),
                int(here) if here.isdecimal() else 0,
            )
    return None


def _tasks_here(environment: Mapping[str, str]) -> str:
    """How many tasks Slurm runs on this node, where it says so for all nodes in turn, as ``2(x3),1``."""
    told = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    counts = [count for count, times in told for _ in range(int(times or 1))]
    node = environment.get("SLURM_NODEID", "")
    return counts[int(node)] if node.isdecimal() and int(node) < len(counts) else ""


@contextmanager
def joined(launch: Launch, device: str, patience_s: float) -> Iterator[None]:
    """Be part of the process group of a launch; the environment is as before afterwards.

    Where all ranks are on this machine, gloo is bound to the loopback interface, unless the user names another.

    Raises
    ------
    RankError
        If the others do not come in time, nobody says where to meet, or this process has a group already.
    ArgumentError
        If there is no GPU where one is wanted.
    """
    added = {"RANK": str(launch.rank), "WORLD_SIZE": str(launch.size)}
    if launch.on_one_machine:
        added |= {"GLOO_SOCKET_IFNAME": "lo"}
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise RankError(
            f"nobody says where the ranks meet: there is no {' and no '.join(missing)}",
            rank=launch.rank,
            hint="set MASTER_ADDR to the address of the first machine and MASTER_PORT to a free port; "
            "torchrun does so itself",
        )
    backend, gpu = rank_device(device, launch.local_rank, launch.local_size)
    with _environment(added):
        if gpu is not None:
            torch.cuda.set_device(gpu)
        try:
            dist.init_process_group(backend, timeout=timedelta(seconds=patience_s))
        except ValueError as error:
            raise RankError(
                f"this process cannot join a group: {error}",
                rank=launch.rank,
                hint="leave the process group that it has; MASTER_PORT is a number",
            ) from error
        except (RuntimeError, TimeoutError) as error:
            raise RankError(
                f"the {launch.size} ranks did not meet within {patience_s:g} s: {error}",
                rank=launch.rank,
                hint="see what the other ranks wrote; a longer --timeout",
            ) from error
        rank_work.work_on(device)
        try:
            yield
        finally:
            rank_work.work_on(None)
            if dist.is_initialized():
                dist.destroy_process_group()


@contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """Variables that are there where they were not, for a while."""
    new = {key: value for key, value in added.items() if key not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for key in new:
            os.environ.pop(key, None)
