"""A program and whole tensors, as ranks are asked to run them: each gets its graph and its shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from spmd_lab.errors import ArgumentError
from spmd_lab.prove.inputs import global_values
from spmd_lab.prove.pieces import cut
from spmd_lab.prove.shares import local_values
from spmd_lab.rebuild import Program
from spmd_lab.run.named_run import node_told
from spmd_lab.saving.saved import saved_program

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spmd_lab.saving import SavedProgram

__all__ = ["ProgramRequest", "all_given", "check_size", "lines_of"]


@dataclass(frozen=True)
class ProgramRequest:
    """A run of a program.

    Parameters
    ----------
    program : SavedProgram
        The program.
    values : sequence of torch.Tensor
        The whole inputs, in order.
    lines : mapping of str to str
        The user's line of each step, where it is known.
    seed : int
        Of the pieces of pending inputs.
    """

    program: SavedProgram
    values: Sequence[torch.Tensor]
    lines: Mapping[str, str]
    seed: int = 0

    @classmethod
    def of(cls, work: Program | SavedProgram, args: Sequence[torch.Tensor], size: int) -> ProgramRequest:
        """A program on the arguments that a user gives.

        Raises
        ------
        ArgumentError
            If it is for another number of ranks, or the arguments are not its inputs.
        """
        kept = saved_program(work) if isinstance(work, Program) else work
        check_size(kept, size)
        if not isinstance(work, Program):
            return cls(kept, all_given(kept, args), {})
        return cls(kept, global_values(work.expansion.traced, args or None, seed=0), lines_of(work))

    def inputs(self, ranks: Iterable[int]) -> list[list[torch.Tensor]]:
        """The flat local inputs of each of these ranks, on the CPU."""
        wanted = list(ranks)
        columns = []
        for port, value in zip(self.program.inputs, self.values, strict=True):
            layout, whole = port.layout, value.detach().cpu()
            assert layout is not None
            if layout.is_pending:
                pieces = local_values([whole], [layout], self.seed)[0]
                columns.append([pieces[rank] for rank in wanted])
            else:
                columns.append([whole if layout.is_replicated else cut(whole, layout, rank) for rank in wanted])
        return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in wanted]

    def node_at(self, rank: int, place: int) -> str | None:
        """The node at a position of a rank's graph, counted from 1."""
        nodes = self.program.graph_of(rank)["nodes"]
        if not 0 < place <= len(nodes):
            return None
        return node_told(nodes[place - 1]["name"], nodes[place - 1]["step"], self.lines)


def check_size(kept: SavedProgram, size: int) -> None:
    """Refuse a program for another number of ranks.

    Raises
    ------
    ArgumentError
        If it is.
    """
    if kept.mesh.size != size:
        raise ArgumentError(
            f"the program is for {kept.mesh!r}, there are {size} ranks",
            argument="work",
            hint=f"Ranks({kept.mesh.size})",
        )


def lines_of(program: Program) -> dict[str, str]:
    """The user's line of each step that has one."""
    return {step.name: str(step.source) for step in program.expansion.steps if step.source is not None}


def all_given(kept: SavedProgram, args: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The inputs of a program that holds no parameters: all are given, as they were traced.

    Raises
    ------
    ArgumentError
        If some are missing, or have another shape or dtype.
    """
    wanted = "whole tensors, in order: " + ", ".join(port.name for port in kept.inputs)
    if len(args) != len(kept.inputs):
        raise ArgumentError(
            f"{kept.name} has {len(kept.inputs)} flat inputs, not {len(args)}", argument="args", hint=wanted
        )
    for port, value in zip(kept.inputs, args, strict=True):
        layout = port.layout
        assert layout is not None
        if not isinstance(value, torch.Tensor):
            raise ArgumentError(f"input {port.name!r} is a {type(value).__name__}", argument=port.name, hint=wanted)
        if tuple(value.shape) != tuple(layout.global_shape) or value.dtype != layout.dtype:
            raise ArgumentError(
                f"input {port.name!r} is {list(value.shape)} {value.dtype}, the program was made for "
                f"{list(layout.global_shape)} {layout.dtype}",
                argument=port.name,
                layouts={port.name: layout},
                hint="whole tensors, of the shapes and dtypes that were traced",
            )
    return tuple(args)
