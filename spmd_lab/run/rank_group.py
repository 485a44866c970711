"""The processes behind `spmd_lab.run.ranks`: started by torch's launcher, asked over pipes, ended whatever they do."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from contextlib import suppress
from multiprocessing.connection import Listener, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

from spmd_lab.errors import RankError
from spmd_lab.run import rank_process

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from multiprocessing.connection import Connection

__all__ = ["Answer", "RankDiedError", "RankGroup", "raise_failure"]

Answer = tuple[bool, Any, str]
"""Whether a rank succeeded, what it gave or how it failed, and what it printed."""

_STARTING, _GRACE, _INTERRUPTED = 180.0, 3.0, 3.0
"""Seconds: for processes to start; for the others to answer once a rank has failed; once the kernel is interrupted."""


def raise_failure(answers: Mapping[int, Answer]) -> None:
    """Raise the failure of the first rank that has one.

    Raises
    ------
    RankError
        With the rank's own traceback, and the node that it was in.
    """
    for rank, (good, told, _) in sorted(answers.items()):
        if not good:
            raise RankError(
                f"rank {rank} raised {told['kind']}: {told['text']}\n{told['traceback'].rstrip()}",
                node=told["node"],
                rank=rank,
                step=told["step"],
            )


class RankDiedError(RankError):
    """A process that is gone.

    Attributes
    ----------
    place : int
        The position, from 1, of the node that it was in; 0 where it ran no program.
    """

    def __init__(self, what: str, rank: int, place: int, node: str | None = None) -> None:
        super().__init__(what, rank=rank, node=node, hint="see what it wrote above")
        self.place = place

    def in_node(self, node: str) -> RankDiedError:
        """The same, with the name of the node."""
        return RankDiedError(self.what, self.rank, self.place, node)


class RankGroup:
    """The processes of one process group, and a pipe to each.

    Parameters
    ----------
    size : int
        How many.
    device : str
        "cpu" or "cuda".
    patience_s : float
        How long a rank waits for others in a collective.
    """

    def __init__(self, size: int, device: str, patience_s: float) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="spmd_lab_ranks_"))
        key = secrets.token_bytes(32)
        listener = Listener(str(self._folder / "kernel"), authkey=key)
        environment = os.environ | {
            rank_process.ADDRESS: str(listener.address),
            rank_process.KEY: key.hex(),
            rank_process.KERNEL: str(os.getpid()),
            rank_process.STORE: str(self._folder / "group"),
            rank_process.PLACES: str(self._folder / "places"),
            rank_process.DEVICE: device,
            rank_process.PATIENCE: str(patience_s),
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
        (self._folder / "places").write_bytes(bytes(8 * size))
        self._log = (self._folder / "log").open("w+")
        self._launcher = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={size}"),
                *("--rdzv-backend=c10d", f"--rdzv-endpoint={self._folder / 'meeting'}", "--rdzv-conf=store_type=file"),
                *("--max-restarts=0", "-m", rank_process.__name__),
            ],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # an interrupt of the kernel is passed on by us, not by the terminal
        )
        self._finalizer = weakref.finalize(self, _end, self._launcher, self._folder)
        self._pipes: list[Connection] = []
        self._pids: list[int] = []
        try:
            with listener:
                self._accept(listener, size)
        except BaseException:
            self.close()  # when the listener is: it takes its socket with it, out of the folder that goes here
            raise

    def _accept(self, listener: Listener, size: int) -> None:
        deadline = time.monotonic() + _STARTING
        arrived: dict[int, tuple[Connection, int]] = {}
        pending: list[Any] = []
        socket: Any = listener._listener._socket  # type: ignore[attr-defined]  # noqa: SLF001 - to wait with a limit
        while len(arrived) < size:
            for each in wait([socket, *pending], timeout=0.5):
                with suppress(EOFError, OSError):  # a rank that ends here has told the log why, and ends its launcher
                    if each is socket:
                        pending.append(listener.accept())
                    else:
                        pending.remove(each)
                        pipe: Connection = each  # type: ignore[assignment]
                        rank, pid = pipe.recv()
                        arrived[rank] = (pipe, pid)
            if self._launcher.poll() is not None or time.monotonic() > deadline:
                told = self._tail(60 * (size + 1))  # the launcher's own lines come last, and say the least
                raise RankError(f"{size} ranks did not start:\n{told}", rank=0, hint="see what they wrote above")
        self._pipes = [arrived[rank][0] for rank in range(size)]
        self._pids = [arrived[rank][1] for rank in range(size)]

    def ask(self, requests: Sequence[bytes]) -> dict[int, Answer]:
        """Send each rank its request; the answers by rank, those of all unless one has failed.

        Raises
        ------
        RankDiedError
            If one dies.
        """
        answers: dict[int, Answer] = {}
        for rank, (pipe, request) in enumerate(zip(self._pipes, requests, strict=True)):
            try:
                pipe.send_bytes(request)
            except OSError:
                raise self._died(rank) from None
        deadline = float("inf")
        try:
            while len(answers) < len(self._pipes) and time.monotonic() < deadline:
                self._collect(answers)
                if any(not good for good, _, _ in answers.values()):
                    deadline = min(deadline, time.monotonic() + _GRACE)
        except KeyboardInterrupt:
            self._interrupt(answers)
            raise
        return answers

    def _collect(self, answers: dict[int, Answer]) -> None:
        waiting = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in answers}
        for pipe in wait(list(waiting), timeout=0.2):
            rank = waiting[pipe]  # type: ignore[index]
            try:
                answers[rank] = cloudpickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
            except (EOFError, OSError):
                raise self._died(rank) from None

    def _interrupt(self, answers: dict[int, Answer]) -> None:
        """Pass an interrupt on to the ranks that are still at work."""
        for rank, pid in enumerate(self._pids):
            if rank not in answers:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGINT)
        deadline = time.monotonic() + _INTERRUPTED
        with suppress(RankError):
            while len(answers) < len(self._pipes) and time.monotonic() < deadline:
                self._collect(answers)

    def _died(self, rank: int) -> RankError:
        with suppress(subprocess.TimeoutExpired):
            self._launcher.wait(timeout=_GRACE)
        return RankDiedError(f"rank {rank} died while it was at work:\n{self._tail()}", rank, self._place(rank))

    def _place(self, rank: int) -> int:
        """The position, from 1, of the node of a program that a rank was in; 0 where it ran none."""
        with suppress(OSError):
            places = (self._folder / "places").read_bytes()
            return int.from_bytes(places[8 * rank : 8 * rank + 8], sys.byteorder)
        return 0

    def _tail(self, lines: int = 30) -> str:
        self._log.seek(0)
        return "".join(self._log.readlines()[-lines:]).rstrip()

    def close(self) -> None:
        """End the processes, whatever they do."""
        for pipe in self._pipes:
            pipe.close()
        self._log.close()
        self._finalizer()


def _end(launcher: subprocess.Popen[bytes], folder: Path) -> None:
    """End a launcher and the ranks that it started: they are one process group."""
    if launcher.poll() is None:
        launcher.terminate()
        with suppress(subprocess.TimeoutExpired):
            launcher.wait(timeout=_GRACE)
    with suppress(ProcessLookupError):
        os.killpg(launcher.pid, signal.SIGKILL)
    launcher.wait()
    shutil.rmtree(folder, ignore_errors=True)
