"""The engines of an ipyparallel cluster as ranks: it may reach over MPI, Slurm or SSH, and outlives what fails."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import cloudpickle

from spmd_lab.errors import ArgumentError, RankError
from spmd_lab.run import engine_side
from spmd_lab.run.rank_answer import answer
from spmd_lab.run.rank_group import RankDiedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spmd_lab.run.rank_group import Answer

__all__ = ["ClusterGroup"]

_STARTING, _GRACE, _LEAVING = 120.0, 3.0, 2.0
"""Seconds: to join; for the others to answer once a rank has failed; to leave."""


class ClusterGroup:
    """The first engines of a cluster, as the ranks of one process group.

    Parameters
    ----------
    size : int
        How many.
    device : str
        "cpu" or "cuda".
    patience_s : float
        How long a rank waits for others in a collective; engines that wait cannot be ended.
    client : ipyparallel.Client or None
        What knows the cluster; by default that of the default profile.
    address : str or None
        Where they meet, an address of the first engine's machine; by default a file where all are on one machine.
    """

    def __init__(self, size: int, device: str, patience_s: float, client: Any, address: str | None) -> None:
        client = _default_client() if client is None else client
        if len(client.ids) < size:
            raise ArgumentError(
                f"the cluster has {len(client.ids)} engines, not {size}",
                argument=f"size={size}",
                hint="start it with more engines, and wait for them: client.wait_for_engines(n)",
            )
        self._client, self._ids = client, list(client.ids)[:size]
        machines = self._everywhere([(engine_side.machine,)] * size)
        meeting = client[self._ids[0]].apply_async(engine_side.meet, len(set(machines)) == 1, address, size, patience_s)
        place = meeting.get(timeout=_STARTING)
        self._everywhere([(engine_side.enter, rank, machines, device, place, patience_s) for rank in range(size)])

    def _everywhere(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """One call on each engine; their results."""
        asked = [self._client[one].apply_async(*call) for one, call in zip(self._ids, calls, strict=True)]
        try:
            return [each.get(timeout=_STARTING) for each in asked]
        except Exception as error:
            raise RankError(
                f"the engines of the cluster do not form a group: {error}",
                hint="spmd_lab and the same torch have to be installed where the engines run",
            ) from error

    def ask(self, requests: Sequence[bytes]) -> dict[int, Answer]:
        """Send each rank its request; the answers by rank, those of all unless one has failed.

        Raises
        ------
        RankDiedError
            If an engine dies.
        """
        pending = {
            rank: self._client[one].apply_async(answer, request)
            for rank, (one, request) in enumerate(zip(self._ids, requests, strict=True))
        }
        answers: dict[int, Answer] = {}
        deadline = float("inf")
        try:
            while pending and time.monotonic() < deadline:
                self._collect(pending, answers)
                if any(not good for good, _, _ in answers.values()):
                    deadline = min(deadline, time.monotonic() + _GRACE)
        except KeyboardInterrupt:
            with suppress(Exception):
                self._client.send_signal(signal.SIGINT, targets=[self._ids[rank] for rank in pending], block=False)
            raise
        return answers

    def _collect(self, pending: dict[int, Any], answers: dict[int, Answer]) -> None:
        time.sleep(0.01)
        for rank in [rank for rank, each in pending.items() if each.ready()]:
            try:
                answers[rank] = cloudpickle.loads(pending.pop(rank).get())
            except Exception as error:
                raise RankDiedError(f"the engine of rank {rank} is gone: {error}", rank, 0) from error

    def close(self) -> None:
        """Leave the group, without waiting for engines that are still in a collective: they leave when it gives up."""
        with suppress(Exception):
            left = [self._client[one].apply_async(engine_side.leave) for one in self._ids]
            for each in left:
                each.wait(_LEAVING)


def _default_client() -> Any:
    try:
        import ipyparallel
    except ImportError as error:
        raise ArgumentError(
            "ipyparallel is not installed", argument='engine="ipyparallel"', hint='pip install "spmd_lab[cluster]"'
        ) from error
    try:
        return ipyparallel.Client(timeout=10)
    except Exception as error:
        raise RankError(
            f"there is no cluster of the default profile: {error}",
            hint="client=ipyparallel.Client(...), or ipyparallel.Cluster(n=4).start_and_connect_sync()",
        ) from error
