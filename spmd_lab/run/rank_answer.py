"""What every real rank does, whoever has started it: join the others, then answer one request after the other."""

from __future__ import annotations

import contextlib
import io
import os
import traceback
from datetime import timedelta
from typing import TYPE_CHECKING

import cloudpickle
import torch
import torch.distributed as dist

from spmd_lab.run import rank_work
from spmd_lab.run.devices import rank_device
from spmd_lab.run.named_run import current_node
from spmd_lab.run.rank_work import carried_to_cpu

if TYPE_CHECKING:
    from types import TracebackType

    from torch.distributed.distributed_c10d import Store

__all__ = ["answer", "join"]


def join(rank: int, size: int, device: str, store: Store, patience_s: float, local_rank: int, local_size: int) -> None:
    """Join the process group of ``size`` ranks.

    Parameters
    ----------
    rank, size : int
        Which rank this process is, of how many.
    device : str
        "cpu" or "cuda", as `rank_device` takes it.
    store : torch.distributed.Store
        Where they meet.
    patience_s : float
        How long a rank waits for others in a collective.
    local_rank, local_size : int
        Which rank of its machine it is, of how many.

    Raises
    ------
    ArgumentError
        If there is no GPU where one is wanted.
    """
    backend, gpu = rank_device(device, local_rank, local_size)
    if gpu is not None:
        torch.cuda.set_device(gpu)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // local_size))
    rank_work.work_on(device)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=patience_s))


def answer(request: bytes) -> bytes:
    """Do one piece of work: whether it succeeded, what it gave or how it failed, and what it printed."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            result = carried_to_cpu(cloudpickle.loads(request)())
        told: bytes = cloudpickle.dumps((True, result, printed.getvalue()))
    except BaseException as error:  # an interrupt too: it ends the work, not the rank
        lines = "".join(traceback.format_exception(error.with_traceback(_user_frames(error))))
        node, step = current_node(error)
        failure = {"kind": type(error).__name__, "text": str(error), "traceback": lines, "node": node, "step": step}
        told = cloudpickle.dumps((False, failure, printed.getvalue()))
    return told


def _user_frames(error: BaseException) -> TracebackType | None:
    """The traceback from the user's function on."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename in (__file__, rank_work.__file__):
        found = found.tb_next
    return found or error.__traceback__
