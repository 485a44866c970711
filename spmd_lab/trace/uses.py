"""Who makes the values of a graph, who reads them, and who is the last that does."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from torch import fx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["last_uses", "producer", "reads"]


def producer(node: fx.Node) -> fx.Node:
    """The operator that makes a value: one of several outputs is read by a getitem.

    Examples
    --------
    >>> graph = fx.Graph()
    >>> parts = graph.call_function(divmod, (graph.placeholder("x"), 2))
    >>> producer(graph.call_function(operator.getitem, (parts, 1))) is parts, producer(parts) is parts
    (True, True)
    """
    source = node.args[0] if node.target is operator.getitem else node
    return source if isinstance(source, fx.Node) else node


def reads(node: fx.Node) -> list[fx.Node]:
    """The values that a node reads, in order, one as often as it stands there: the operands of its step."""
    found: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), found.append)
    return found


def last_uses(nodes: Sequence[fx.Node], also: Callable[[fx.Node], Iterable[Any]]) -> dict[fx.Node, list[Any]]:
    """The values that are not needed after each node; ``also`` tells what a node needs beside what it reads."""
    last: dict[Any, fx.Node] = {}
    for node in nodes:
        last.update(dict.fromkeys((node, *node.all_input_nodes, *also(node)), node))
    frees: dict[fx.Node, list[Any]] = {}
    for value, user in last.items():
        frees.setdefault(user, []).append(value)
    return frees
