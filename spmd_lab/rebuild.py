"""The third stage: the dispatch subgraphs spliced into one program, for every rank that is asked for."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from spmd_lab.binding import bound, check_device_mesh
from spmd_lab.collectives import is_collective
from spmd_lab.drawn import Drawn
from spmd_lab.errors import RebuildError, expect
from spmd_lab.expand.expansion import Expansion
from spmd_lab.expand.resolve import output_nodes
from spmd_lab.progress import progress

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from torch.distributed.device_mesh import DeviceMesh

    from spmd_lab.expand import Operand, Step
    from spmd_lab.expand.subgraph import LocalGraph
    from spmd_lab.expand.values import Collective
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

    def __repr__(self) -> str:
        from spmd_lab.records import text

        return text(self)

    def _repr_html_(self) -> str:
        from spmd_lab.records import html

        return html(self)

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
    make = partial(_splice, expansion)
    axes = frozenset[str]().union(*(each.first.depends_on for each in expansion.subgraphs.values()))
    return Program(expansion, make((0,) * expansion.mesh.ndim), axes, make)


class _Splicer:
    """Copies subgraphs into one graph; it knows the new node of every traced value."""

    def __init__(self, expansion: Expansion, coordinate: tuple[int, ...]) -> None:
        self.expansion = expansion
        self.coordinate = coordinate
        self.graph = fx.Graph()
        self.steps = {step.name: step for step in expansion.steps}
        self.values: dict[str, fx.Node] = {}
        self.tuples: dict[str, tuple[fx.Node | None, ...]] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.taken = {node.name for node in expansion.traced.graph_module.graph.nodes}

    def step(
        self, step: Step, operands: Sequence[fx.Node], values: Sequence[str], **marks: Any
    ) -> tuple[fx.Node | None, ...]:
        """Copy the subgraph of one step behind its operands; name its outputs after the values that they hold."""
        local: LocalGraph = self.expansion.subgraphs[step.name].at(self.coordinate)
        names = {node: _identifier(name) for node, name in zip(local.outputs, values, strict=False) if node is not None}
        copies: dict[fx.Node, fx.Node] = dict(zip(local.inputs, operands, strict=True))
        collectives = iter(step.collectives)
        for node in local.body:
            args, kwargs = fx.map_arg((node.args, node.kwargs), copies.__getitem__)
            name = names.get(node) or (f"local_{node.name}" if node.name in self.taken else node.name)
            copy = self.graph.create_node(node.op, node.target, args, kwargs, name)
            copy.meta = {**node.meta, "spmd_step": step.name, "source": step.source, "phase": step.phase, **marks}
            if is_collective(copy):
                copy.meta["spmd_collective"] = _announced(step, collectives)
            copies[node] = copy
        self.constants.update(local.constants)
        return tuple(None if node is None else copies[node] for node in local.outputs)

    def read(self, node: fx.Node, operand: Operand) -> fx.Node:
        """The node of an operand: that of a value, or of what a step gathers of it, placed where it is first read."""
        step = self.steps.get(operand.name)
        if step is None or step.op != "gather":
            return self.values[node.name]
        return self.values.get(step.name) or self.move(step, self.values[node.name], step.name)

    def move(self, step: Step, value: fx.Node, name: str) -> fx.Node:
        """Copy the subgraph of a step that only moves a value; what comes out holds the value of the step's name."""
        (moved,) = self.step(step, [value], [name])
        assert moved is not None
        self.carry(moved, step.name)
        return moved

    def carry(self, node: fx.Node, value: str) -> None:
        """Note that a node holds a value of the traced graph (the first name stays: an identity adds none)."""
        self.values[value] = node
        node.meta.setdefault("spmd_value", value)


def _announced(step: Step, collectives: Iterator[Collective]) -> Collective:
    """The next collective that a step says it sends."""
    found = next(collectives, None)
    if found is None:
        raise RebuildError(
            f"{step.name} sends more than the {len(step.collectives)} collectives that it says",
            node=f"{step.name}: {step.op}",
            hint="a rule sends by the methods of its builder, which take notes: all_reduce, all_gather, ...",
        )
    return found


def _identifier(name: str) -> str:
    """The name of a value as Python accepts it, without the underscore at the end that means "in place"."""
    return re.sub(r"\W+", "_", name).strip("_")


def _splice(expansion: Expansion, coordinate: tuple[int, ...]) -> fx.GraphModule:
    splicer = _Splicer(expansion, coordinate)
    traced = expansion.traced.graph_module
    for node in progress(traced.graph.nodes, f"rebuilding {expansion.name}", len(traced.graph.nodes)):
        if node.op == "placeholder":
            splicer.values[node.name] = splicer.graph.placeholder(node.target)
        elif node.op == "get_attr":
            constant = splicer.graph.get_attr(node.target)
            splicer.constants[node.target] = getattr(traced, node.target)
            splicer.values[node.name] = constant
        elif node.target is operator.getitem:
            made = splicer.tuples[node.args[0].name][node.args[1]]
            if made is not None:
                splicer.carry(made, node.name)
        elif node.op == "call_function":
            _splice_call(splicer, node)
    _splice_outputs(splicer)
    _drop_unread(splicer.graph)
    graph_module = fx.GraphModule(splicer.constants, splicer.graph, f"{expansion.name}Program")
    graph_module.graph.lint()
    return graph_module


def _splice_call(splicer: _Splicer, node: fx.Node) -> None:
    if node.name not in splicer.steps:
        raise RebuildError(f"{node.name} has no step", node=f"{node.name}: {node.target}")
    read: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), read.append)
    several = isinstance(node.meta.get("val"), (tuple, list))
    values = _names_of_parts(node) if several else [node.name]
    step = splicer.steps[node.name]
    operands = [splicer.read(each, operand) for each, operand in zip(read, step.operands, strict=True)]
    marks = {key: node.meta[key] for key in ("checkpoint", "kept") if key in node.meta}
    made = splicer.step(step, operands, values, **marks)
    if several:
        splicer.tuples[node.name] = made
    elif made and made[0] is not None:
        splicer.carry(made[0], node.name)


def _names_of_parts(node: fx.Node) -> list[str]:
    """The name of each output of a node with several: that of the getitem that reads it."""
    readers = {user.args[1]: user.name for user in node.users if user.target is operator.getitem}
    return [readers.get(index, f"{node.name}_{index}") for index in range(len(node.meta["val"]))]


def _splice_outputs(splicer: _Splicer) -> None:
    returned: list[Any] = []
    for output, node in zip(splicer.expansion.traced.outputs, output_nodes(splicer.expansion.traced), strict=True):
        if not isinstance(node, fx.Node):
            returned.append(node)
            continue
        value = splicer.values[node.name]
        step = splicer.steps.get(f"resolve:{output.name}")
        returned.append(value if step is None else splicer.move(step, value, output.name))
    splicer.graph.output(tuple(returned))


def _drop_unread(graph: fx.Graph) -> None:
    """Erase getitem nodes of outputs that the traced program does not use."""
    for node in reversed(graph.nodes):
        if node.target is operator.getitem and not node.users and "spmd_value" not in node.meta:
            graph.erase_node(node)
