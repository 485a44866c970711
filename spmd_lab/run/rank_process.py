"""One real rank of `spmd_lab.run.ranks`: torch's launcher starts this module once for each."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from datetime import timedelta
from multiprocessing.connection import Client
from typing import TYPE_CHECKING

import cloudpickle
import torch
import torch.distributed as dist

from spmd_lab.run import rank_work
from spmd_lab.run.rank_work import carried_to_cpu, current_node

if TYPE_CHECKING:
    from types import TracebackType

ADDRESS, KEY, STORE, DEVICE, PATIENCE = (
    f"SPMD_LAB_RANKS_{name}" for name in ("ADDRESS", "KEY", "STORE", "DEVICE", "PATIENCE")
)
"""The environment in which ranks start: where the kernel listens, and how they meet one another."""


def main() -> None:
    """Join the process group, then do what the kernel asks until it hangs up."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = os.environ[DEVICE]
    pipe = Client(os.environ[ADDRESS], authkey=bytes.fromhex(os.environ.pop(KEY)))
    if device == "cuda":
        torch.cuda.set_device(rank)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // size))
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        store=dist.FileStore(os.environ[STORE], size),  # type: ignore[attr-defined]
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=float(os.environ[PATIENCE])),
    )
    pipe.send((rank, os.getpid()))
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            pipe.send_bytes(_answer(pipe.recv_bytes()))
    os._exit(0)  # a group that waits for ranks that are gone must not keep this process


def _answer(request: bytes) -> bytes:
    """Do one piece of work: whether it succeeded, what it gave or how it failed, and what it printed."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            result = carried_to_cpu(cloudpickle.loads(request)())
        answer: bytes = cloudpickle.dumps((True, result, printed.getvalue()))
    except BaseException as error:  # an interrupt too: it ends the work, not the rank
        told = "".join(traceback.format_exception(error.with_traceback(_user_frames(error))))
        failure = {"kind": type(error).__name__, "text": str(error), "traceback": told, "node": current_node(error)}
        answer = cloudpickle.dumps((False, failure, printed.getvalue()))
    return answer


def _user_frames(error: BaseException) -> TracebackType | None:
    """The traceback from the user's function on."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename in (__file__, rank_work.__file__):
        found = found.tb_next
    return found or error.__traceback__


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    main()
