"""`lean`: what changes nothing is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import fx

from spmd_lab.collectives import WAIT, axis_of, is_collective
from spmd_lab.rewrite.added import forget_redistributions, redistribution_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from spmd_lab.expand import Expansion

__all__ = ["lean"]

_aten = torch.ops.aten


def lean(graph_module: fx.GraphModule, expansion: Expansion, rank: int) -> None:
    """Drop views that give back what they are given, and collectives of a rank with itself.

    A trace is full of them: a weight is transposed for its product, its gradient is transposed twice.

    Examples
    --------
    >>> import torch, spmd_lab as sl
    >>> expansion = sl.spmd_expand(torch.nn.Linear(4, 2), torch.ones(8, 4), mesh=sl.Mesh(dp=4), batch="dp")
    >>> program = expansion.program.rewrite("lean")
    >>> [str(each.graph_module.code).count("aten.t.") for each in (expansion.program, program)]
    [4, 2]
    """
    graph, broken = graph_module.graph, set[tuple[str, int] | None]()
    for node in list(graph.nodes):
        _skip_shape(node)
        same = _same_as(node, expansion, rank) if node.op == "call_function" else None
        if same is not None:
            node.replace_all_uses_with(same)
            broken.add(redistribution_of(node))
    for node in reversed(graph.nodes):
        if not node.users and (node.target in (*_UNDO, WAIT) or _is_alone(node, expansion)):
            graph.erase_node(node)
    forget_redistributions(graph, broken)


def _same_as(node: fx.Node, expansion: Expansion, rank: int) -> fx.Node | None:
    """The node whose value this one gives back, if that is all it does."""
    find = _UNDO.get(node.target)
    if find is not None:
        return find(node, expansion, rank)
    source = node.args[0] if node.target is WAIT else None
    if isinstance(source, fx.Node) and _is_alone(source, expansion):
        return source.all_input_nodes[0]
    return None


def _skip_shape(node: fx.Node) -> None:
    """Take the last of several shapes at once, if the one before is for nobody else."""
    before = node.args[0] if node.target is _aten.reshape.default else None
    if isinstance(before, fx.Node) and before.target is _aten.reshape.default and len(before.users) == 1:
        node.update_arg(0, before.args[0])


def _is_alone(node: fx.Node, expansion: Expansion) -> bool:
    """Whether a node of a redistribution communicates over an axis of one rank."""
    return "spmd_operand" in node.meta and is_collective(node) and expansion.mesh.axis_size(axis_of(node)) == 1


def _source(node: fx.Node, *_: object) -> fx.Node:
    (source,) = node.all_input_nodes
    return source


def _undone(node: fx.Node, *_: object) -> fx.Node | None:
    """What was transposed before, and is transposed back."""
    before = node.args[0]
    if isinstance(before, fx.Node) and before.target is node.target and _dims(before) == _dims(node):
        return before.all_input_nodes[0]
    return None


def _dims(node: fx.Node) -> frozenset[object]:
    return frozenset(node.args[1:])


def _unchanged(node: fx.Node, expansion: Expansion, rank: int) -> fx.Node | None:
    """What has the shape already that it is to have."""
    source, shape = node.args[:2]
    if not isinstance(source, fx.Node) or not isinstance(shape, (list, tuple)):
        return None
    layout = expansion.layouts.get(source.meta.get("spmd_value", ""))
    return source if layout is not None and tuple(shape) == layout.local_shape(rank) else None


_UNDO: dict[object, Callable[[fx.Node, Expansion, int], fx.Node | None]] = {
    _aten.alias.default: _source,
    _aten.detach.default: _source,
    _aten.reshape.default: _unchanged,
    _aten.t.default: _undone,
    _aten.transpose.int: _undone,
}
