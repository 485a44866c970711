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

from spmd_lab.torch_internals.operators import is_operator, is_view

if TYPE_CHECKING:
    from collections.abc import Collection

    from spmd_lab.trace.values import TracedGraph

__all__ = ["taken_anew"]

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
        the name of the first and ``_anew``.

    Returns
    -------
    TracedGraph
        The same object where there are none.

    Examples
    --------
    >>> import torch, spmd_lab as sl
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    >>> again = taken_anew(sl.trace(model, torch.zeros(2, 4)), ["1.weight"])
    >>> [(node.name, again.phase(node)) for node in again.op_nodes if node.name.endswith("_anew")]
    [('t_1_anew', 'backward')]
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(traced.graph_module.graph, copies))
    graph.output_node().meta = dict(traced.graph_module.graph.output_node().meta)
    placeholders = {found.node for found in traced.inputs if found.name in names}
    moved: set[fx.Node] = set()
    for node in graph.nodes:
        reads = node.all_input_nodes
        own = [each in moved or each.name in placeholders for each in reads]
        if _only_moves(node) and own and all(own) and traced.phase(node) == "forward":
            moved.add(node)
    anew = _Anew(graph, moved)
    for node in list(graph.nodes):
        if node.op == "call_function" and traced.phase(node) == "backward":
            anew.read_by(node)
    if not anew.made:
        return traced
    graph.lint()
    module = fx.GraphModule(traced.graph_module, graph, type(traced.graph_module).__name__)
    return replace(traced, graph_module=module)


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
