"""Real ranks for tests: processes that stay, each with a gloo process group, and run one case after another."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import time
import traceback
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

STARTING, RUNNING = 120.0, 60.0
"""Seconds to wait for processes to start, and for a case."""


class RankError(AssertionError):
    """A rank failed; the text is its traceback."""


class RankPool:
    """Processes that form a process group.

    A case is a function of a module that the processes can import; it is called on every rank with the same arguments.
    After a failure the processes are started anew, so that one broken case does not spoil the next.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def run(self, case: Callable[..., Any], *args: Any) -> list[Any]:
        """Run a case on every rank; its results in the order of ranks.

        Raises
        ------
        RankError
            If it fails on some rank, or takes too long.
        """
        if not self._processes:
            self._start()
        try:
            for pipe in self._pipes:
                pipe.send((case, args))
            return self._results(RUNNING)
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed.tensor", "spmd_lab", "tests.run.pool"])
        pipes = [context.Pipe() for _ in range(self.size)]
        self._pipes = [ours for ours, _ in pipes]
        port = context.Queue(1)
        for rank, (_, theirs) in enumerate(pipes):
            process = context.Process(target=_rank, args=(rank, self.size, port, theirs), daemon=True)
            process.start()
            self._processes.append(process)
            theirs.close()
        self._results(STARTING)

    def _results(self, seconds: float) -> list[Any]:
        """One answer from each rank; the first failure, once all have answered or it is clear that they will not."""
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + seconds
        while len(answers) < self.size and time.monotonic() < deadline:
            ready = multiprocessing.connection.wait(
                [pipe for rank, pipe in enumerate(self._pipes) if rank not in answers], timeout=1.0
            )
            for pipe in ready:
                rank = self._pipes.index(pipe)  # type: ignore[arg-type]
                try:
                    answers[rank] = pipe.recv()  # type: ignore[union-attr]
                except EOFError:
                    answers[rank] = (False, "the process is gone")
            if any(not good for good, _ in answers.values()):
                deadline = min(deadline, time.monotonic() + 5.0)
        failures = [f"rank {rank}:\n{value}" for rank, (good, value) in sorted(answers.items()) if not good]
        failures += [f"rank {rank}: no answer" for rank in range(self.size) if rank not in answers]
        if failures:
            raise RankError("\n".join(failures))
        return [answers[rank][1] for rank in range(self.size)]

    def stop(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()
        self._processes, self._pipes = [], []


def _rank(rank: int, size: int, port: Any, pipe: Connection) -> None:
    """What a process does: join the group, then run what it is sent until the pipe is closed."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    patience = timedelta(seconds=RUNNING)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, timeout=patience, wait_for_workers=False)
        for _ in range(size - 1):
            port.put(store.port)
    else:
        store = dist.TCPStore("127.0.0.1", port.get(timeout=STARTING), size, is_master=False, timeout=patience)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=patience)
    pipe.send((True, None))
    while True:
        try:
            case, args = pipe.recv()
        except EOFError:
            return
        torch.manual_seed(0)
        try:
            answer = (True, case(*args))
        except BaseException:
            answer = (False, traceback.format_exc())
        pipe.send(answer)
