"""Real ranks on this machine, for a notebook: they stay, and run what a cell sends them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cloudpickle
import torch

from spmd_lab.errors import ArgumentError
from spmd_lab.prove.inputs import global_values
from spmd_lab.rebuild import Program
from spmd_lab.run.rank_group import RankGroup, raise_failure
from spmd_lab.run.rank_work import FunctionWork, ProgramWork
from spmd_lab.saving import SavedProgram
from spmd_lab.saving.saved import saved_program

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Ranks"]


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
        self._group: RankGroup | None = None

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
        request = _packed(_work(work, args, kwargs, self.size))
        self._group = self._group or RankGroup(self.size, self.device, self.patience_s)
        try:
            answers = self._group.ask(request)
        except BaseException:
            self.close()
            raise
        self.printed = [printed for _, _, printed in answers]
        for rank, printed in enumerate(self.printed):
            for line in printed.splitlines():
                print(f"[rank {rank}] {line}")  # noqa: T201 - what ranks print is for the user
        raise_failure(dict(enumerate(answers)))
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


def _packed(work: FunctionWork | ProgramWork) -> bytes:
    try:
        return bytes(cloudpickle.dumps(work))
    except Exception as error:
        raise ArgumentError(
            f"the work cannot be sent to other processes: {type(error).__name__}: {error}",
            argument="work",
            hint="make inside the function what belongs to one process: files, locks, process groups, Ranks",
        ) from error


def _all_given(kept: SavedProgram, args: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """A saved program holds no parameters: all of its inputs are given."""
    if len(args) != len(kept.inputs):
        raise ArgumentError(
            f"{kept.name} has {len(kept.inputs)} flat inputs, not {len(args)}",
            argument="args",
            hint="whole tensors, in order: " + ", ".join(port.name for port in kept.inputs),
        )
    return args
