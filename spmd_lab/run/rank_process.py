"""One real rank of `spmd_lab.run.ranks`: torch's launcher starts this module once for each."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import struct
import sys
from multiprocessing.connection import Client
from pathlib import Path

import torch.distributed as dist

from spmd_lab.run.named_run import tell_places
from spmd_lab.run.rank_answer import answer, join

ADDRESS, KEY, STORE, PLACES, DEVICE, PATIENCE = (
    f"SPMD_LAB_RANKS_{name}" for name in ("ADDRESS", "KEY", "STORE", "PLACES", "DEVICE", "PATIENCE")
)
"""The environment in which ranks start: where the kernel listens, and how they meet one another."""


def main() -> None:
    """Join the process group, then do what the kernel asks until it hangs up."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    pipe = Client(os.environ[ADDRESS], authkey=bytes.fromhex(os.environ.pop(KEY)))
    store = dist.FileStore(os.environ[STORE], size)  # type: ignore[attr-defined]
    join(rank, size, os.environ[DEVICE], store, float(os.environ[PATIENCE]))
    with open(os.environ[PLACES], "r+b") as file:
        places = mmap.mmap(file.fileno(), 8 * size)
    tell_places(lambda place: struct.pack_into("=q", places, 8 * rank, place))
    pipe.send((rank, os.getpid()))
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            pipe.send_bytes(answer(pipe.recv_bytes()))
    shutil.rmtree(Path(os.environ[PLACES]).parent, ignore_errors=True)  # a kernel that was killed has left it
    os._exit(0)  # a group that waits for ranks that are gone must not keep this process


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    main()
