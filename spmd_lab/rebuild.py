"""The third stage: the dispatch subgraphs spliced into one program, for every rank that is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from spmd_lab.binding import bound, check_device_mesh
from spmd_lab.drawn import Drawn
from spmd_lab.errors import expect
from spmd_lab.expand.expansion import Expansion
from spmd_lab.splicing import splice

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    import torch
    from torch import fx
    from torch.distributed.device_mesh import DeviceMesh

    from spmd_lab.explain import CollectiveTable
    from spmd_lab.layout import Layout
    from spmd_lab.prove import VerifyReport
    from spmd_lab.run.ranks import Ranks

__all__ = ["Program", "rebuild"]


@dataclass(frozen=True, repr=False, eq=False)
class Program(Drawn):
    """What the ranks run: one flat graph over local tensors, with its collectives.

    Parameters
    ----------
    expansion : Expansion
        Where it comes from.
    graph_module : torch.fx.GraphModule
        The program of rank 0. Every op node carries ``meta["spmd_step"]``, the name of its step; nodes that hold a
        value of the traced graph carry its name as ``meta["spmd_value"]``. The group of a collective is the name of
        its axis, until `for_rank` binds it; its record is ``meta["spmd_collective"]``.
    rank_axes : frozenset of str
        The axes on which ranks run different graphs; empty where all run the same.
    """

    expansion: Expansion
    graph_module: fx.GraphModule
    rank_axes: frozenset[str]
    _make: Callable[[tuple[int, ...]], fx.GraphModule] = field(repr=False)
    _graphs: dict[tuple[int, ...], fx.GraphModule] = field(default_factory=dict, repr=False)

    @property
    def input_layouts(self) -> tuple[Layout, ...]:
        """The layouts of the flat inputs, in order."""
        return self.expansion.input_layouts

    @property
    def output_layouts(self) -> tuple[Layout | None, ...]:
        """The layouts of the flat outputs, in order; None where an output is no tensor."""
        return self.expansion.output_layouts

    @property
    def collectives(self) -> CollectiveTable:
        """What rank 0 sends, in the order of its graph: that of the expansion, unless passes have changed it."""
        from spmd_lab.explain import collectives_of

        return collectives_of(self)

    def for_rank(self, rank: int, device_mesh: DeviceMesh | None = None) -> fx.GraphModule:
        """The program of one rank: a callable of all flat local tensors, tangents included, that returns a flat tuple.

        Parameters
        ----------
        rank : int
            The rank on the mesh.
        device_mesh : DeviceMesh, optional
            A real mesh of the same axes and sizes, whose groups the collectives shall use. Without one the graph is
            there to be read and simulated; ranks that run the same graph share it.

        Raises
        ------
        MeshError
            If the mesh has no such rank, if ``device_mesh`` is not of the same axes and sizes, or if this process is
            another rank of it.
        """
        mesh = self.expansion.mesh
        coordinate = mesh.coordinate(rank)
        graph_module = self._graph_at(coordinate)
        if device_mesh is None:
            return graph_module
        check_device_mesh(mesh, rank, device_mesh)
        return bound(graph_module, device_mesh)

    def _graph_at(self, coordinate: tuple[int, ...]) -> fx.GraphModule:
        place = tuple(
            index if axis in self.rank_axes else 0
            for axis, index in zip(self.expansion.mesh.axes, coordinate, strict=True)
        )
        if not any(place):
            return self.graph_module
        if place not in self._graphs:
            self._graphs[place] = self._make(place)
        return self._graphs[place]

    def rewrite(self, *passes: str | Callable[..., fx.GraphModule | None]) -> Program:
        """A new program, whose graphs passes have changed, one after the other; see `spmd_lab.rewrite.rewrite`."""
        from spmd_lab.rewrite import rewrite

        return rewrite(self, passes)

    def verify(
        self,
        inputs: Mapping[str, torch.Tensor] | Sequence[torch.Tensor] | None = None,
        seed: int = 0,
        ranks: Iterable[int] | Ranks | None = None,
    ) -> VerifyReport:
        """Prove the program equal to the single-device run; see `spmd_lab.prove.verify`."""
        from spmd_lab.prove import verify

        return verify(self, inputs, seed, ranks)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the program to a file, to be bound to a real mesh where `spmd_lab.load` reads it.

        Raises
        ------
        SavingError
            If it holds something that cannot be written.
        """
        from spmd_lab.saving import save

        return save(self, path)

    def to_text(self) -> str:
        """The whole code, where ``repr`` leaves out the middle of long code."""
        from spmd_lab.records import text

        return text(self, full=True)


def rebuild(expansion: Expansion) -> Program:
    """Splice the subgraphs of an expansion into one program.

    Parameters
    ----------
    expansion : Expansion
        What `expand` returned.

    Returns
    -------
    Program

    Raises
    ------
    RebuildError
        If a node of the traced program has no step.

    Examples
    --------
    >>> import torch, spmd_lab as sl
    >>> expansion = sl.spmd_expand(torch.nn.Linear(4, 2), torch.zeros(8, 4), mesh=sl.Mesh(dp=4), batch="dp")
    >>> program = sl.rebuild(expansion)
    >>> [str(layout) for layout in program.output_layouts], [found.kind for found in program.collectives]
    (['f32[8/dp, 2]', 'f32[2, 4]', 'f32[2]'], ['all_reduce', 'all_reduce'])
    """
    expect(expansion, Expansion, "expansion", "sl.expand(traced, mesh, ...) first")
    make = partial(splice, expansion)
    axes = frozenset[str]().union(*(each.first.depends_on for each in expansion.subgraphs.values()))
    return Program(expansion, make((0,) * expansion.mesh.ndim), axes, make)
