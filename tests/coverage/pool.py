"""Runs every operator in a process of its own: one that hangs or dies costs itself alone, and leaves nothing behind."""

from __future__ import annotations

import json
import math
import os
import resource
import selectors
import signal
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import torch

from tests.coverage.outcome import CaseOutcome, OperatorOutcome
from tests.coverage.run_operator import dtype_name, outcomes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["run_all"]

PATIENCE = 5


@dataclass
class _Child:
    """A process that judges one operator, and what it has said so far."""

    name: str
    pid: int
    pipe: int
    started: float = field(default_factory=time.monotonic)
    said: bytearray = field(default_factory=bytearray)


def run_all(
    names: Sequence[str], samples: int, quick: bool = False, jobs: int = 2, timeout: float = 60.0
) -> Iterator[OperatorOutcome]:
    """The outcomes of some operators, as they are finished.

    Parameters
    ----------
    names : sequence of str
        The operators.
    samples : int
        The most samples of each.
    quick : bool
        Leave out the mesh of two axes.
    jobs : int
        How many processes at a time.
    timeout : float
        How many seconds of processor time an operator may take; a few times as many seconds may pass.
    """
    torch.set_num_threads(1)
    first = [each for each in outcomes("add", 1, quick=True) if each.kind != "equal"]  # loads what every child needs
    if first:
        raise RuntimeError(f"not even an addition is equal: {first[0].reason}")
    waiting = list(reversed(names))
    running = selectors.DefaultSelector()
    while waiting or running.get_map():
        while waiting and len(running.get_map()) < jobs:
            child = _start(waiting.pop(), samples, quick, timeout)
            running.register(child.pipe, selectors.EVENT_READ, child)
        ready = [key.data for key, _ in running.select(timeout=0.5)]
        for key in list(running.get_map().values()):
            child = key.data
            ended = child in ready and not _listen(child)
            late = time.monotonic() - child.started > timeout * PATIENCE
            if ended or late:
                running.unregister(child.pipe)
                yield _outcome(child, late and not ended, timeout)


def _start(name: str, samples: int, quick: bool, timeout: float) -> _Child:
    reads, writes = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writes)
        return _Child(name, pid, reads)
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.close(reads)
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(timeout), math.ceil(timeout) + 1))
        with os.fdopen(writes, "w") as pipe:
            for case in outcomes(name, samples, quick):
                print(json.dumps(asdict(case)), file=pipe, flush=True)
        os._exit(0)
    except BaseException:  # a child never returns into the code of its parent
        os._exit(1)


def _listen(child: _Child) -> bool:
    """Take in what a child says; False at the end."""
    said = os.read(child.pipe, 1 << 16)
    child.said += said
    return bool(said)


def _outcome(child: _Child, late: bool, timeout: float) -> OperatorOutcome:
    if late:
        os.kill(child.pid, signal.SIGKILL)
    os.close(child.pipe)
    _, status = os.waitpid(child.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    lines = child.said.decode().split("\n")[:-1]
    outcome = OperatorOutcome(child.name, dtype_name(child.name), seconds=round(time.monotonic() - child.started, 1))
    for line in lines:
        record = json.loads(line)
        outcome.cases.append(CaseOutcome(**{**record, "fallbacks": tuple(record["fallbacks"])}))
    if late or code == -signal.SIGXCPU:
        outcome.cases.append(CaseOutcome(-1, "", "too slow", f"more than {timeout:.0f} s; {len(lines)} cases done"))
    elif code < 0:
        outcome.cases.append(CaseOutcome(-1, "", "crashed", f"its process died of {signal.Signals(-code).name}"))
    elif code > 0:
        outcome.cases.append(CaseOutcome(-1, "", "crashed", "its samples could not be made or judged"))
    return outcome
