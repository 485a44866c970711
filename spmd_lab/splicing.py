"""Copies the dispatch subgraphs of an expansion into one graph, for one place on the mesh."""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from spmd_lab.collectives import is_collective
from spmd_lab.errors import RebuildError
from spmd_lab.expand.resolve import output_nodes
from spmd_lab.progress import progress
from spmd_lab.trace.uses import reads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spmd_lab.expand import Operand, Step
    from spmd_lab.expand.expansion import Expansion
    from spmd_lab.expand.subgraph import LocalGraph
    from spmd_lab.expand.values import Collective

__all__ = ["splice"]


def splice(expansion: Expansion, coordinate: tuple[int, ...]) -> fx.GraphModule:
    """The program of the ranks at one place of the axes on which graphs differ.

    Raises
    ------
    RebuildError
        If a node of the traced program has no step, or a step sends more than it says.
    """
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


def _splice_call(splicer: _Splicer, node: fx.Node) -> None:
    if node.name not in splicer.steps:
        raise RebuildError(f"{node.name} has no step", node=f"{node.name}: {node.target}")
    several = isinstance(node.meta.get("val"), (tuple, list))
    values = _names_of_parts(node) if several else [node.name]
    step = splicer.steps[node.name]
    operands = [splicer.read(each, operand) for each, operand in zip(reads(node), step.operands, strict=True)]
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
