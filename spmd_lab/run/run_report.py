"""What each rank did in a run of a saved program."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from spmd_lab.collectives import WAIT, is_collective

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from spmd_lab.mesh import Mesh
    from spmd_lab.run.timed_run import Measured
    from spmd_lab.saving import SavedProgram

__all__ = ["RankReport", "RunReport", "report_of"]


@dataclass(frozen=True)
class RankReport:
    """What one rank did.

    Parameters
    ----------
    rank : int
        The rank.
    machine, device : str
        Where.
    coordinate : tuple of int
        Its place on the mesh.
    nodes, collectives : int
        How many it ran.
    moved_bytes : int
        Of all its collectives: the larger of what each takes and gives.
    time_us, collective_us : float
        How long it took, and how much of that in collectives, the wait for others included.
    """

    rank: int
    machine: str
    device: str
    coordinate: tuple[int, ...]
    nodes: int
    collectives: int
    moved_bytes: int
    time_us: float
    collective_us: float


@dataclass(frozen=True, repr=False)
class RunReport:
    """A run of a saved program.

    Parameters
    ----------
    name, digest, torch_version : str
        The program.
    mesh : Mesh
        Its mesh.
    launcher : str
        What has started the ranks.
    ranks : tuple of RankReport
        What each did.
    out : Path or None
        Where the outputs were written.
    outputs : tuple of str
        Their names and layouts.
    """

    name: str
    digest: str
    torch_version: str
    mesh: Mesh
    launcher: str
    ranks: tuple[RankReport, ...]
    out: Path | None
    outputs: tuple[str, ...]

    def __repr__(self) -> str:
        from spmd_lab.records.runs import run_text

        return run_text(self)


def report_of(program: SavedProgram, found: Sequence[Measured], launcher: str, out: Path | None) -> RunReport:
    """The report of a run that was measured."""
    return RunReport(
        name=program.name,
        digest=program.digest,
        torch_version=str(torch.__version__),
        mesh=program.mesh,
        launcher=launcher,
        ranks=tuple(_rank_report(program, rank, each) for rank, each in enumerate(found)),
        out=out,
        outputs=tuple(f"{port.name} {port.layout or 'no tensor'}" for port in program.outputs),
    )


def _rank_report(program: SavedProgram, rank: int, found: Measured) -> RankReport:
    nodes = list(program.for_rank(rank).graph.nodes)
    times = [[end - start for start, end in zip(each.starts_ns, each.ends_ns, strict=True)] for each in found.timings]
    of_collectives = [node.target is WAIT or is_collective(node) for node in nodes]
    return RankReport(
        rank=rank,
        machine=found.machine,
        device=found.device,
        coordinate=program.mesh.coordinate(rank),
        nodes=sum(node.op not in ("placeholder", "output") for node in nodes),
        collectives=sum(is_collective(node) for node in nodes),
        moved_bytes=sum(found.moved_bytes),
        time_us=statistics.median(each.ends_ns[-1] - each.starts_ns[0] for each in found.timings) / 1000,
        collective_us=statistics.median(
            sum(time for time, counts in zip(each, of_collectives, strict=True) if counts) for each in times
        )
        / 1000,
    )
