"""One real rank of `spmd_lab.run.ranks`: torch's launcher starts this module once for each."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import signal
import struct
import sys
import time
from multiprocessing.connection import Client
from pathlib import Path

import torch.distributed as dist

from spmd_lab.run.named_run import tell_places
from spmd_lab.run.rank_answer import answer, join

ADDRESS, KEY, KERNEL, STORE, PLACES, DEVICE, PATIENCE = (
    f"SPMD_LAB_RANKS_{name}" for name in ("ADDRESS", "KEY", "KERNEL", "STORE", "PLACES", "DEVICE", "PATIENCE")
)
"""The environment in which ranks start: where the kernel listens, and how they meet one another."""

_DYING = 2.0
"""Seconds in which a kernel that has hung up is gone, or has ended its ranks."""


def main() -> None:
    """Join the process group, then do what the kernel asks until it hangs up."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    launcher = os.getppid()
    pipe = Client(os.environ[ADDRESS], authkey=bytes.fromhex(os.environ.pop(KEY)))
    store = dist.FileStore(os.environ[STORE], size)  # type: ignore[attr-defined]
    join(rank, size, os.environ[DEVICE], store, float(os.environ[PATIENCE]), rank, size)
    with open(os.environ[PLACES], "r+b") as file:
        places = mmap.mmap(file.fileno(), 8 * size)
    tell_places(lambda place: struct.pack_into("=q", places, 8 * rank, place))
    pipe.send((rank, os.getpid()))
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            pipe.send_bytes(answer(pipe.recv_bytes()))
    _leave_nothing(Path(os.environ[PLACES]).parent, int(os.environ[KERNEL]), launcher)


def _leave_nothing(folder: Path, kernel: int, launcher: int) -> None:
    """End this process; and, where the kernel was killed and cannot do so, what it has started and left."""
    deadline = time.monotonic() + _DYING
    while _is_child(launcher, kernel) and time.monotonic() < deadline:
        time.sleep(0.02)  # a kernel that lives ends us; one that dies hangs up before it is gone
    if not _is_child(launcher, kernel):
        if os.getppid() == launcher:
            os.kill(launcher, signal.SIGKILL)  # it would wait for others in the folder that goes
        for _ in range(50):
            shutil.rmtree(folder, ignore_errors=True)
            if os.getppid() != launcher and not folder.exists():
                break
            time.sleep(0.1)
    os._exit(0)  # a group that waits for ranks that are gone must not keep this process


def _is_child(process: int, parent: int) -> bool:
    """Whether a process is still the child of another; so it seems where there is no /proc to look."""
    try:
        return f"PPid:\t{parent}\n" in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return not Path("/proc/self").exists()


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    main()
