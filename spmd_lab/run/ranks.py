"""Real ranks for a notebook: they stay, and run what a cell sends them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

import cloudpickle
import torch

from spmd_lab.errors import ArgumentError, RankError
from spmd_lab.prove.one_rank import SimulationError
from spmd_lab.rebuild import Program
from spmd_lab.run.observed_run import ObservedWork, watches_of
from spmd_lab.run.patience import PATIENCE_S, check_patience
from spmd_lab.run.program_requests import ProgramRequest, check_size, lines_of
from spmd_lab.run.rank_group import RankDiedError, RankGroup, raise_failure
from spmd_lab.run.rank_work import FunctionWork, ProgramWork
from spmd_lab.run.timed_run import MeasuredWork
from spmd_lab.run.waits import profile_of
from spmd_lab.saving import SavedProgram
from spmd_lab.saving.saved import saved_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spmd_lab.prove.one_rank import Report
    from spmd_lab.run.profile import Profile
    from spmd_lab.run.rank_group import Answer
    from spmd_lab.run.timed_run import Measured

__all__ = ["Ranks"]


class Group(Protocol):
    """What answers requests: processes of our own, or the engines of a cluster."""

    def ask(self, requests: Sequence[bytes]) -> dict[int, Answer]:
        """Send each rank its request; the answers by rank, those of all unless one has failed."""

    def close(self) -> None:
        """End it."""


class Ranks:
    """Processes that form a process group, and stay until they are closed.

    torch's elastic launcher starts them on this machine when they are first needed. They meet over the loopback
    interface and a file that only this user can read. Functions may be defined in a notebook's cells.

    Parameters
    ----------
    size : int
        How many.
    device : str, optional
        "cpu" or "cuda". By default "cuda" if there is a GPU: one for each rank where there are enough, else ranks share
        what there is, and gloo carries what they send. `found` says which.
    patience_s : float, optional
        How long a rank waits for others in a collective: by default 60, with ``engine="ipyparallel"`` 8, because the
        engines of a cluster outlive a failed call only once their collectives give up.
    engine : str
        "processes" of this machine, or "ipyparallel": the engines of the cluster that ``client`` knows.
    client : ipyparallel.Client, optional
        By default ``ipyparallel.Client()``, the cluster of the default profile.
    address : str, optional
        Where the engines of a cluster meet: an address of the machine of the first. By default, loopback and a file
        where all are on one machine, else the address that this machine's name has.

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

    def __init__(
        self,
        size: int,
        *,
        device: str | None = None,
        patience_s: float | None = None,
        engine: Literal["processes", "ipyparallel"] = "processes",
        client: Any = None,
        address: str | None = None,
    ) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ArgumentError(f"{size!r} ranks", argument=f"size={size!r}", hint="a whole number from 1")
        if engine not in PATIENCE_S:
            raise ArgumentError(
                f"there is no engine {engine!r}", argument=f"engine={engine!r}", hint=" or ".join(map(repr, PATIENCE_S))
            )
        gpus = torch.cuda.device_count()
        if device not in (None, "cpu", "cuda") or (device == "cuda" and not gpus and engine == "processes"):
            raise ArgumentError(
                f"{size} ranks cannot run on {device!r} here: there are {gpus} GPUs",
                argument=f"device={device!r}",
                hint='"cpu", or leave it out',
            )
        self.size = size
        self.device = device or ("cuda" if gpus else "cpu")
        self.engine = engine
        waits = PATIENCE_S[engine] if patience_s is None else patience_s
        self.patience_s = check_patience(waits, f"patience_s={patience_s!r}")
        self.printed: list[str] = [""] * size
        self._gpus = gpus
        self._client, self._address = client, address
        self._group: Group | None = None

    @property
    def found(self) -> str:
        """What the ranks run on, in words."""
        if self.engine == "ipyparallel":
            return f"{self.device}, on the engines of a cluster"
        if self.device == "cpu":
            return "the CPU (no GPU is here)" if not self._gpus else "the CPU"
        if self._gpus >= self.size:
            return "a GPU each"
        return f"{self._gpus} {'GPU' if self._gpus == 1 else 'GPUs'} that they share"

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
        if isinstance(work, (Program, SavedProgram)):
            if kwargs:
                raise ArgumentError("a program takes its inputs by position", argument=", ".join(kwargs))
            request = ProgramRequest.of(work, args, self.size)
            return self._run_program(request, ProgramWork)
        if not callable(work):
            raise ArgumentError(
                f"{type(work).__name__} cannot be called", argument="work", hint="a function or a Program"
            )
        return self._asked([_packed(FunctionWork(work, args, kwargs))] * self.size)

    def profile(
        self, program: Program | SavedProgram, *inputs: torch.Tensor, repeats: int = 5, first_ones: int = 1
    ) -> Profile:
        """Measure a program: the time of every node and collective on every rank, and who waits for whom.

        Parameters
        ----------
        program : Program or SavedProgram
            The program.
        *inputs : torch.Tensor
            As in `run`.
        repeats, first_ones : int
            How many runs are measured, and how many before them are not.

        Returns
        -------
        Profile
            A table with a timeline; names the straggler, if there is one.

        Raises
        ------
        ArgumentError
            If the program is for another number of ranks, or the inputs are not its own.
        RankError
            If a rank raises or dies.
        """
        if repeats < 1 or first_ones < 0:
            raise ArgumentError(f"{repeats} runs after {first_ones}", argument="repeats", hint="at least 1, after 0")
        request = ProgramRequest.of(program, inputs, self.size)
        measured = self.measure(request, repeats, first_ones, with_outputs=False)
        steps = program.expansion.steps if isinstance(program, Program) else ()
        return profile_of(request, measured, self.found, {step.name: step.phase for step in steps})

    def measure(self, request: ProgramRequest, repeats: int, first_ones: int, with_outputs: bool) -> list[Measured]:
        """Run a program against the clock on every rank: what `profile` and the command line rest on."""
        return self._run_program(request, MeasuredWork, repeats, first_ones, with_outputs)

    def observe(
        self, program: Program, inputs: Sequence[Sequence[torch.Tensor]], seed: int
    ) -> tuple[list[Sequence[Report]], list[tuple[Any, ...]]]:
        """Run a program on the flat inputs of each rank: what each holds on its way, and what it returns.

        This is what ``program.verify(ranks=ranks)`` rests on.

        Raises
        ------
        SimulationError
            If a rank cannot run a step.
        """
        kept = saved_program(program)
        check_size(kept, self.size)
        lines = lines_of(program)
        watches = [watches_of(program.for_rank(rank)) for rank in range(self.size if program.rank_axes else 1)]
        work = [_packed(ObservedWork(kept, flat, lines, watches, seed)) for flat in inputs]
        try:
            answers = self._asked(work)
        except RankError as error:
            if error.step is None:
                raise
            raise SimulationError(error.what.splitlines()[0], error.step, error.rank, error.hint) from error
        return [told for told, _ in answers], [outputs for _, outputs in answers]

    def _run_program(self, request: ProgramRequest, work: Callable[..., Any], *args: Any) -> list[Any]:
        """Have each rank do something with its graph and its inputs; a rank that dies is told with its node."""
        requests = [
            _packed(work(request.program, flat, request.lines, *args)) for flat in request.inputs(range(self.size))
        ]
        try:
            return self._asked(requests)
        except RankDiedError as error:
            node = request.node_at(error.rank, error.place)
            if node is None:
                raise
            raise error.in_node(node) from None

    def _asked(self, requests: Sequence[bytes]) -> list[Any]:
        group = self._started()
        try:
            answers = group.ask(requests)
        except BaseException:
            self.close()
            raise
        if len(answers) < self.size:
            self.close()
        self.printed = [answers[rank][2] if rank in answers else "" for rank in range(self.size)]
        for rank, printed in enumerate(self.printed):
            for line in printed.splitlines():
                print(f"[rank {rank}] {line}")  # noqa: T201 - what ranks print is for the user
        raise_failure(answers)
        return [answers[rank][1] for rank in range(self.size)]

    def _started(self) -> Group:
        if self._group is None and self.engine == "ipyparallel":
            from spmd_lab.run.cluster import ClusterGroup

            self._group = ClusterGroup(self.size, self.device, self.patience_s, self._client, self._address)
        elif self._group is None:
            self._group = RankGroup(self.size, self.device, self.patience_s)
        return self._group

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
        return f"<Ranks: {self.size} on {self.found}, {state}>"


def _packed(work: object) -> bytes:
    try:
        return bytes(cloudpickle.dumps(work))
    except Exception as error:
        raise ArgumentError(
            f"the work cannot be sent to other processes: {type(error).__name__}: {error}",
            argument="work",
            hint="make inside the function what belongs to one process: files, locks, process groups, Ranks",
        ) from error
