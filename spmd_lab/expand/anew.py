"""The trace in which the backward takes its views of parameters anew, instead of those that the forward made.

A layer reads its weight through views and casts, and its backward reads these: whoever gathers a parameter for each
phase has to take them of what is gathered there, or the whole parameter would be kept in between.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import fx

from spmd_lab.torch_internals.operators import is_operator, is_random, is_view

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from spmd_lab.trace.values import TracedGraph

__all__ = ["needed_by", "taken_anew"]

_aten = torch.ops.aten
_COPIES = (_aten._to_copy.default, _aten.clone.default, _aten.cat.default, _aten.stack.default)  # noqa: SLF001
"""Operators that are no views, and give nothing but elements of their arguments."""


def taken_anew(traced: TracedGraph, names: Collection[str]) -> TracedGraph:
    """The same program, whose backward reads nothing of the forward that is made of some parameters alone.

    Parameters
    ----------
    traced : TracedGraph
        The program.
    names : collection of str
        Inputs. Their views, casts and concatenations that the backward reads are computed there a second time, under
        the name of the first and ``_anew``. What nothing but gradients need of them belongs to the backward at once.

    Returns
    -------
    TracedGraph
        The same object where nothing is to be done.

    Examples
    --------
    >>> import torch, spmd_lab as sl
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    >>> again = taken_anew(sl.trace(model, torch.zeros(2, 4)), ["1.weight"])
    >>> [(node.name, again.phase(node)) for node in again.op_nodes if node.name.endswith("_anew")]
    [('t_1_anew', 'backward')]
    """
    graph = fx.Graph()
    graph.output(graph.graph_copy(traced.graph_module.graph, {}))
    graph.output_node().meta = dict(traced.graph_module.graph.output_node().meta)
    placeholders = {found.node for found in traced.inputs if found.name in names}
    late = _late(traced, graph, {node for node in graph.nodes if node.name in placeholders})
    for node in reversed(late):
        min(node.users).prepend(node)
        node.meta["phase"] = "backward"
    anew = _Anew(graph, _moved(graph, placeholders))
    for node in list(graph.nodes):
        if node.op == "call_function" and traced.phase(node) == "backward":
            anew.read_by(node)
    if not anew.made and not late:
        return traced
    graph.lint()
    return replace(traced, graph_module=fx.GraphModule(traced.graph_module, graph, type(traced.graph_module).__name__))


def needed_by(values: Iterable[object]) -> set[fx.Node]:
    """The nodes among some values, and all that they depend on."""
    needed: set[fx.Node] = set()
    waiting = [value for value in values if isinstance(value, fx.Node)]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting.extend(node.all_input_nodes)
    return needed


def _late(traced: TracedGraph, graph: fx.Graph, inputs: set[fx.Node]) -> list[fx.Node]:
    """What the forward makes of inputs for nothing but gradients, random draws and what they need excepted."""
    returned = zip(traced.outputs, graph.output_node().args[0], strict=True)  # type: ignore[arg-type]
    drawn = [node for node in graph.nodes if is_operator(node.target) and is_random(node.target)]
    early = needed_by([*(node for output, node in returned if output.role != "gradient"), *drawn])
    found: dict[fx.Node, None] = {}
    for node in graph.nodes:
        of_inputs = any(each in inputs or each in found for each in node.all_input_nodes)
        if of_inputs and _is_forward(node) and node.users and node not in early:
            found[node] = None
    return list(found)


def _is_forward(node: fx.Node) -> bool:
    return node.op == "call_function" and node.meta.get("phase", "forward") == "forward"


def _moved(graph: fx.Graph, placeholders: Collection[str]) -> set[fx.Node]:
    """The values of the forward that hold nothing but elements of inputs."""
    moved: set[fx.Node] = set()
    for node in graph.nodes:
        reads = node.all_input_nodes
        own = all(each in moved or each.name in placeholders for each in reads)
        if reads and own and _only_moves(node) and _is_forward(node):
            moved.add(node)
    return moved


def _only_moves(node: fx.Node) -> bool:
    """Whether a node gives elements of what it reads, and computes nothing."""
    target = node.target
    return target is operator.getitem or (is_operator(target) and (is_view(target) or target in _COPIES))


class _Anew:
    """Second copies of nodes, made where they are first read."""

    def __init__(self, graph: fx.Graph, moved: set[fx.Node]) -> None:
        self._graph = graph
        self._moved = moved
        self.made: dict[fx.Node, fx.Node] = {}

    def read_by(self, reader: fx.Node) -> None:
        """Let a node of the backward read second copies."""
        for node in reader.all_input_nodes:
            if node in self._moved:
                reader.replace_input_with(node, self._copy(node, reader))

    def _copy(self, node: fx.Node, reader: fx.Node) -> fx.Node:
        if node not in self.made:
            sources = {each: self._copy(each, reader) for each in node.all_input_nodes if each in self._moved}
            with self._graph.inserting_before(reader):
                args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: sources.get(each, each))
                copy = self._graph.create_node(node.op, node.target, args, kwargs, f"{node.name}_anew")
            copy.meta = {**node.meta, "phase": "backward"}
            self.made[node] = copy
        return self.made[node]
