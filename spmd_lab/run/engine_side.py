"""What an engine of a cluster does to be a rank: meet, enter and leave a process group."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from spmd_lab.errors import ArgumentError
from spmd_lab.run import rank_work
from spmd_lab.run.rank_answer import join

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Place", "enter", "leave", "machine", "meet"]

Place = tuple[str, int]
"""Where ranks meet: an address and a port, or a file and 0."""

_stores: list[Any] = []
"""The store of this engine's group: of the first rank from when it is met, of the others from when they enter."""

_undone = ExitStack()
"""What is left to do when this engine leaves its group."""


def machine() -> str:
    """The name of the machine."""
    return socket.gethostname()


def meet(on_one_machine: bool, address: str | None, size: int, patience_s: float) -> Place:
    """Open the place where ranks meet, on the first of them: bound to one address, or a file of this user's."""
    leave()
    if on_one_machine and address is None:
        folder = Path(tempfile.mkdtemp(prefix="spmd_lab_cluster_"))
        _undone.callback(shutil.rmtree, folder, ignore_errors=True)
        return str(folder / "group"), 0
    host = address or socket.gethostbyname(socket.gethostname())
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.bind((host, 0))
    listening.listen(size)
    port = listening.getsockname()[1]
    store = dist.TCPStore(  # type: ignore[attr-defined]
        host,
        port,
        size,
        is_master=True,
        timeout=timedelta(seconds=patience_s),
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )
    _hold(store)
    return host, port


def enter(rank: int, machines: Sequence[str], device: str, place: Place, patience_s: float) -> None:
    """Join the process group; one that the user has is left alone.

    Parameters
    ----------
    rank : int
        Which rank this engine is.
    machines : sequence of str
        The machine of each rank.
    device : str
        "cpu" or "cuda".
    place : Place
        Where they meet.
    patience_s : float
        How long a rank waits for others in a collective.

    Raises
    ------
    ArgumentError
        If this process has a process group already, or no GPU where one is wanted.
    """
    if rank:
        leave()
    if dist.is_initialized():
        raise ArgumentError(
            "this engine has a process group of its own", argument="engine", hint="destroy_process_group() there first"
        )
    (where, port), size, here = place, len(machines), machines[rank]
    store: Any
    if port and _stores:
        store = _stores[0]
    elif port:
        store = dist.TCPStore(where, port, size, is_master=False, timeout=timedelta(seconds=patience_s))  # type: ignore[attr-defined]
    else:
        store = dist.FileStore(where, size)  # type: ignore[attr-defined]
    loopback = "GLOO_SOCKET_IFNAME" not in os.environ and (not port or where in ("127.0.0.1", "localhost", "::1"))
    if loopback:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    _undone.callback(torch.set_num_threads, torch.get_num_threads())
    _undone.callback(rank_work.work_on, None)
    try:
        join(rank, size, device, store, patience_s, machines[:rank].count(here), machines.count(here))
        _hold(store)
        _undone.callback(_leave_group)
    finally:
        if loopback:
            del os.environ["GLOO_SOCKET_IFNAME"]


def leave() -> None:
    """Leave the group that `enter` joined, if there is one; all else is as it was before `meet`."""
    _undone.close()


def _hold(store: Any) -> None:
    _stores.append(store)
    _undone.callback(_stores.clear)


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
