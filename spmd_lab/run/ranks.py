"""Real ranks on this machine, for a notebook: they stay, and run what a cell sends them."""

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
import torch

from spmd_lab.errors import ArgumentError, RankError
from spmd_lab.prove.inputs import global_values
from spmd_lab.rebuild import Program
from spmd_lab.run import rank_process
from spmd_lab.run.rank_work import FunctionWork, ProgramWork
from spmd_lab.saving import SavedProgram
from spmd_lab.saving.saved import saved_program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection

__all__ = ["Ranks"]

_STARTING, _GRACE, _INTERRUPTED = 180.0, 3.0, 3.0
"""Seconds: for processes to start; for the others to answer once a rank has failed; once the kernel is interrupted."""


class Ranks:
    """Processes of this machine that form a process group, and stay until they are closed.

    torch's elastic launcher starts them when they are first needed. They meet over the loopback interface and a file
    that only this user can read. Functions may be defined in a notebook's cells.

    Parameters
    ----------
    size : int
        How many.
    device : str, optional
        "cpu" or "cuda". By default "cuda" if there is a GPU for each rank, else "cpu".
    patience_s : float
        How long a rank waits for others in a collective.

    Examples
    --------
    >>> import torch, torch.distributed as dist, spmd_lab as sl
    >>> def total(x):
    ...     mine = x * (dist.get_rank() + 1)
    ...     dist.all_reduce(mine)
    ...     return mine.item()
    >>> with sl.Ranks(2) as ranks:
    ...     ranks.run(total, torch.tensor(1.0))
    [3.0, 3.0]
    """

    def __init__(self, size: int, *, device: str | None = None, patience_s: float = 60.0) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ArgumentError(f"{size!r} ranks", argument=f"size={size!r}", hint="a whole number from 1")
        gpus = torch.cuda.device_count()
        if device not in (None, "cpu", "cuda") or (device == "cuda" and gpus < size):
            raise ArgumentError(
                f"{size} ranks cannot run on {device!r} here: there are {gpus} GPUs",
                argument=f"device={device!r}",
                hint='"cpu", or as many ranks as there are GPUs',
            )
        self.size = size
        self.device = device or ("cuda" if gpus >= size else "cpu")
        self.patience_s = patience_s
        self.printed: list[str] = [""] * size
        self._group: _Group | None = None

    def run(self, work: Callable[..., Any] | Program | SavedProgram, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a function on every rank, or run a program.

        Parameters
        ----------
        work : callable, Program or SavedProgram
            A function is called with the same arguments on every rank. A program runs on its shards of the whole
            tensors that follow, one for each of its inputs in order, as `Program.verify` takes them.
        *args, **kwargs
            The arguments; tensors are copied to the ranks.

        Returns
        -------
        list
            What each rank returns, tensors on the CPU; for a program, its flat local outputs. What ranks print stands
            in ``printed``, and is printed once all have answered.

        Raises
        ------
        RankError
            If a rank raises or dies: the others are ended, and start anew when they are needed.
        """
        request = cloudpickle.dumps(_work(work, args, kwargs, self.size))
        self._group = self._group or _Group(self.size, self.device, self.patience_s)
        try:
            answers = self._group.ask(request)
        except BaseException:
            self.close()
            raise
        self.printed = [printed for _, _, printed in answers]
        for rank, printed in enumerate(self.printed):
            for line in printed.splitlines():
                print(f"[rank {rank}] {line}")  # noqa: T201 - what ranks print is for the user
        _raise_failure(dict(enumerate(answers)))
        return [result for _, result, _ in answers]

    def close(self) -> None:
        """End the processes; they start anew when they are needed."""
        if self._group is not None:
            self._group.close()
            self._group = None

    @property
    def is_running(self) -> bool:
        """Whether there are processes now."""
        return self._group is not None

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "running" if self.is_running else "started when they are needed"
        return f"<Ranks: {self.size} on {self.device}, {state}>"


def _work(work: Any, args: tuple[Any, ...], kwargs: dict[str, Any], size: int) -> FunctionWork | ProgramWork:
    if not isinstance(work, (Program, SavedProgram)):
        if not callable(work):
            raise ArgumentError(
                f"{type(work).__name__} cannot be called", argument="work", hint="a function or a Program"
            )
        return FunctionWork(work, args, kwargs)
    kept = saved_program(work) if isinstance(work, Program) else work
    if kept.mesh.size != size:
        raise ArgumentError(
            f"the program is for {kept.mesh!r}, there are {size} ranks",
            argument="work",
            hint=f"Ranks({kept.mesh.size})",
        )
    if kwargs:
        raise ArgumentError("a program takes its inputs by position", argument=", ".join(kwargs))
    if isinstance(work, SavedProgram):
        return ProgramWork(kept, _all_given(kept, args), {})
    traced = work.expansion.traced
    lines = {step.name: str(step.source) for step in work.expansion.steps if step.source is not None}
    return ProgramWork(kept, global_values(traced, args or None, seed=0), lines)


def _all_given(kept: SavedProgram, args: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """A saved program holds no parameters: all of its inputs are given."""
    if len(args) != len(kept.inputs):
        raise ArgumentError(
            f"{kept.name} has {len(kept.inputs)} flat inputs, not {len(args)}",
            argument="args",
            hint="whole tensors, in order: " + ", ".join(port.name for port in kept.inputs),
        )
    return args


def _raise_failure(answers: Mapping[int, tuple[bool, Any, str]]) -> None:
    for rank, (good, told, _) in sorted(answers.items()):
        if not good:
            raise RankError(
                f"rank {rank} raised {told['kind']}: {told['text']}\n{told['traceback'].rstrip()}",
                node=told["node"],
                rank=rank,
            )


class _Group:
    """The processes of one process group, and a pipe to each."""

    def __init__(self, size: int, device: str, patience_s: float) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="spmd_lab_ranks_"))
        key = secrets.token_bytes(32)
        listener = Listener(str(self._folder / "kernel"), authkey=key)
        environment = os.environ | {
            rank_process.ADDRESS: str(listener.address),
            rank_process.KEY: key.hex(),
            rank_process.STORE: str(self._folder / "group"),
            rank_process.DEVICE: device,
            rank_process.PATIENCE: str(patience_s),
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
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
        with listener:
            self._accept(listener, size)

    def _accept(self, listener: Listener, size: int) -> None:
        deadline = time.monotonic() + _STARTING
        arrived: dict[int, tuple[Connection, int]] = {}
        pending: list[Any] = []
        socket: Any = listener._listener._socket  # type: ignore[attr-defined]  # noqa: SLF001 - to wait with a limit
        while len(arrived) < size:
            for each in wait([socket, *pending], timeout=0.5):
                if each is socket:
                    pending.append(listener.accept())
                else:
                    pending.remove(each)
                    pipe: Connection = each  # type: ignore[assignment]
                    rank, pid = pipe.recv()
                    arrived[rank] = (pipe, pid)
            if self._launcher.poll() is not None or time.monotonic() > deadline:
                told = self._tail()
                self.close()
                raise RankError(f"{size} ranks did not start:\n{told}", rank=0, hint="see what they wrote above")
        self._pipes = [arrived[rank][0] for rank in range(size)]
        self._pids = [arrived[rank][1] for rank in range(size)]

    def ask(self, request: bytes) -> list[tuple[bool, Any, str]]:
        """Send a request to every rank; all answers, in the order of ranks."""
        answers: dict[int, tuple[bool, Any, str]] = {}
        for rank, pipe in enumerate(self._pipes):
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
        if len(answers) < len(self._pipes):
            _raise_failure(answers)
        return [answers[rank] for rank in range(len(self._pipes))]

    def _collect(self, answers: dict[int, tuple[bool, Any, str]]) -> None:
        waiting = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in answers}
        for pipe in wait(list(waiting), timeout=0.2):
            rank = waiting[pipe]  # type: ignore[index]
            try:
                answers[rank] = cloudpickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
            except (EOFError, OSError):
                raise self._died(rank) from None

    def _interrupt(self, answers: dict[int, tuple[bool, Any, str]]) -> None:
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
        return RankError(
            f"rank {rank} died while it was at work:\n{self._tail()}", rank=rank, hint="see what it wrote above"
        )

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
