"""A saved program, run from files: by the processes of a launcher, or by ranks that are started for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from spmd_lab.errors import ArgumentError, MeshError, RankError, SavingError, SpmdLabError, nearest
from spmd_lab.files import check_place, write_file
from spmd_lab.mesh import Mesh
from spmd_lab.prove.pieces import assemble, replicas, same_values
from spmd_lab.run.launcher import joined, launch_of
from spmd_lab.run.named_run import current_node
from spmd_lab.run.patience import check_patience
from spmd_lab.run.program_requests import ProgramRequest, all_given
from spmd_lab.run.rank_work import prepared
from spmd_lab.run.ranks import Ranks
from spmd_lab.run.run_report import RunReport, report_of
from spmd_lab.run.same_program import require_same
from spmd_lab.run.timed_run import measured
from spmd_lab.saving import load
from spmd_lab.saving.saved import digest_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from spmd_lab.run.launcher import Launch
    from spmd_lab.run.timed_run import Measured
    from spmd_lab.saving import SavedProgram

__all__ = ["FileRun", "run_file"]


@dataclass(frozen=True)
class FileRun:
    """What is to be run.

    Parameters
    ----------
    program : path
        What `Program.save` wrote.
    inputs : path or None
        A file of ``torch.save``: whole tensors, by name or in order; None for a program without inputs.
    out : path or None
        Where rank 0 writes the whole outputs, by name.
    mesh : str or None
        The mesh that the user counts on.
    device : str or None
        "cpu" or "cuda"; by default what is there.
    timeout_s : float
        How long ranks wait for one another.
    """

    program: Path
    inputs: Path | None = None
    out: Path | None = None
    mesh: str | None = None
    device: str | None = None
    timeout_s: float = 60.0


def run_file(asked: FileRun, environment: Mapping[str, str] | None = None) -> RunReport | None:
    """Run a saved program on the ranks of a launcher, or, where there is none, on ranks started for it.

    Parameters
    ----------
    asked : FileRun
        What is to be run.
    environment : mapping, optional
        Where a launcher has left its variables; by default ``os.environ``.

    Returns
    -------
    RunReport or None
        What each rank did; None on all ranks of a launcher but the first.

    Raises
    ------
    SavingError, ArgumentError, MeshError
        If a file is missing or wrong, or the program is for another mesh, torch or number of ranks.
    RankError
        If ranks have different programs or inputs, one fails, or one waits for too long.
    """
    check_patience(asked.timeout_s, f"--timeout {asked.timeout_s}")
    launch = launch_of(os.environ if environment is None else environment)
    program = load(asked.program)
    _check(asked, program, launch)
    values = _inputs(asked.inputs, program)
    request = ProgramRequest(program, values, {})
    device = asked.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if launch is None:
        with Ranks(program.mesh.size, device=device, patience_s=asked.timeout_s) as ranks:
            found = ranks.measure(request, repeats=1, first_ones=0, with_outputs=True)
    else:
        gathered = _on_this_rank(request, launch, device, asked.timeout_s)
        if gathered is None:
            return None
        found = gathered
    written = None if asked.out is None else _written(asked.out, program, found)
    return report_of(program, found, "started here" if launch is None else launch.launcher, written)


def _check(asked: FileRun, program: SavedProgram, launch: Launch | None) -> None:
    mesh = program.mesh
    if asked.mesh is not None:
        wanted = Mesh.parse(asked.mesh)
        if (wanted.axes, wanted.shape) != (mesh.axes, mesh.shape):
            raise MeshError(
                f"{asked.program} is for {mesh!r}, not for {wanted!r}",
                argument=f"--mesh {asked.mesh}",
                hint=f"--mesh {','.join(f'{a}={n}' for a, n in zip(mesh.axes, mesh.shape, strict=True))}, "
                "or expand and save the program for that mesh",
            )
    if launch is not None and launch.size != mesh.size:
        raise MeshError(
            f"{asked.program} is for {mesh!r}: {mesh.size} ranks; {launch.launcher} has started {launch.size}",
            argument="program",
            hint=f"torchrun --nproc-per-node={mesh.size} -m spmd_lab run …, or no launcher at all",
        )
    if asked.out is not None:
        check_place(asked.out, argument=f"--out {asked.out}")


def _inputs(path: Path | None, program: SavedProgram) -> tuple[torch.Tensor, ...]:
    """The whole inputs of a program, from a file."""
    names = [port.name for port in program.inputs]
    if path is None and names:
        raise ArgumentError(
            f"{program.name} has {len(names)} inputs", argument="--inputs", hint="a file with " + ", ".join(names)
        )
    data: Any = {} if path is None else _loaded(path)
    if isinstance(data, torch.Tensor):
        data = [data]
    if isinstance(data, Mapping):
        unknown = [name for name in data if name not in names]
        missing = [name for name in names if name not in data]
        if unknown:
            hint = nearest(unknown[0], names)
            raise ArgumentError(f"{program.name} has no input {unknown[0]!r}", argument=f"--inputs {path}", hint=hint)
        if missing:
            raise ArgumentError(
                f"{path} lacks {len(missing)} of {len(names)} inputs: {', '.join(missing)}",
                argument=f"--inputs {path}",
                hint="whole tensors by name, parameters too: {each.name: value for each, value in "
                "zip(traced.inputs, traced.values)} are those of the trace",
            )
        data = [data[name] for name in names]
    if not isinstance(data, (list, tuple)):
        raise ArgumentError(f"{path} holds a {type(data).__name__}", argument=f"--inputs {path}", hint="a dict by name")
    return all_given(program, data)


def _loaded(path: Path) -> object:
    if not path.is_file():
        raise ArgumentError(f"there is no file {path}", argument=f"--inputs {path}")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise SavingError(
            f"{path} holds no plain tensors", argument=f"--inputs {path}", hint="what torch.save wrote of a dict"
        ) from error


def _on_this_rank(request: ProgramRequest, launch: Launch, device: str, timeout_s: float) -> list[Measured] | None:
    """Run one rank's part with the others; on the first rank, what all of them made."""
    with joined(launch, device, timeout_s):
        try:
            require_same(
                ",".join(digest_of(value) for value in request.values), "those of its file", what="input values"
            )
            (mine,) = request.inputs([launch.rank])
            graph, flat = prepared(request.program, mine)
            made = measured(graph, flat, request.lines)
            gathered: list[Any] | None = [None] * launch.size if launch.rank == 0 else None
            dist.gather_object(made, gathered)
        except SpmdLabError:
            raise
        except Exception as error:
            raise RankError(
                f"rank {launch.rank} cannot go on: {type(error).__name__}: {str(error).strip()}",
                rank=launch.rank,
                node=current_node(error)[0],
                hint="has another rank failed, or is it late? See what the others wrote, or give a longer --timeout",
            ) from error
        return gathered


def _written(path: Path, program: SavedProgram, found: Sequence[Measured]) -> Path:
    """Put the outputs of all ranks together, and write them by name, whole or not at all."""
    wholes: dict[str, Any] = {}
    for position, port in enumerate(program.outputs):
        column = [each.outputs[position] for each in found]
        if port.layout is None:
            wholes[port.name] = column[0]
            continue
        first, *others = [assemble(port.layout, column, copy, as_ranks_do=True).value for copy in replicas(port.layout)]
        if not all(same_values(first, other) for other in others):
            raise RankError(
                f"the ranks have different copies of output {port.name!r}; nothing was written",
                hint="does the program draw numbers, or does an operator round otherwise on another device?",
            )
        wholes[port.name] = first
    return write_file(path, lambda file: torch.save(wholes, file))
