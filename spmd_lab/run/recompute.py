"""What the backward reads of the forward: kept until then, or computed once more where a checkpoint says so."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from torch import fx

from spmd_lab.binding import WAIT, is_collective
from spmd_lab.streams import draw_locally
from spmd_lab.torch_internals.operators import is_operator, is_random

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["draws", "in_time", "kept_and_recomputed"]


def kept_and_recomputed(
    graph: fx.Graph, early: set[fx.Node], results: Sequence[Any], wanted: Sequence[Any]
) -> tuple[list[fx.Node], set[fx.Node]]:
    """The values of the forward that the backward takes over, in order, and those that it computes once more.

    Constants are in both halves.

    Parameters
    ----------
    early : set of fx.Node
        The forward.
    results, wanted : sequence
        What the forward returns, and what the backward does.
    """
    late = (node for node in graph.nodes if node not in early and node.op != "output")
    read = _nodes(wanted).union(*(node.all_input_nodes for node in late))
    waiting = [value for value in read if value in early]
    cheap = _recomputable(graph, early, results)
    kept, again = set[fx.Node](), set[fx.Node]()
    while waiting:
        node = waiting.pop()
        if node not in cheap:
            kept.add(node)
        elif node not in again:
            again.add(node)
            waiting.extend(node.all_input_nodes)
    return [node for node in graph.nodes if node in kept and node.op != "get_attr"], again


def _recomputable(graph: fx.Graph, early: set[fx.Node], results: Sequence[Any]) -> set[fx.Node]:
    """What lies inside a checkpoint, but for what leaves it, what is drawn, and what other ranks have told.

    Of what is drawn, the part that is used is kept: the whole may be many times larger.
    """
    returned, drawn, found = _nodes(results), set[fx.Node](), set[fx.Node]()
    for node in graph.nodes:
        read = node.all_input_nodes
        if draws(node) or (read and drawn.issuperset(read)):
            drawn.add(node)
        elif _may_be_repeated(node, found) and node in early and node not in returned and not _leaves(node, early):
            found.add(node)
    return found


def _may_be_repeated(node: fx.Node, repeated: set[fx.Node]) -> bool:
    if "checkpoint" not in node.meta or "kept" in node.meta or is_collective(node) or node.target is WAIT:
        return False
    return node.target is not operator.getitem or node.args[0] in repeated


def _leaves(node: fx.Node, early: set[fx.Node]) -> bool:
    """Whether the forward reads a value outside of its checkpoint."""
    region = node.meta["checkpoint"]
    return any(user in early and user.meta.get("checkpoint") != region for user in node.users)


def _nodes(values: Sequence[Any]) -> set[fx.Node]:
    return {value for value in values if isinstance(value, fx.Node)}


def in_time(graph: fx.Graph, early: set[fx.Node], again: set[fx.Node]) -> Iterator[fx.Node]:
    """The nodes of the backward, in order, each behind what has to be computed once more for it."""
    made: set[fx.Node] = set()
    order = {node: place for place, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if node in early:
            continue
        missing, waiting = set[fx.Node](), list(node.all_input_nodes)
        while waiting:
            value = waiting.pop()
            if value in again and value not in made | missing:
                missing.add(value)
                waiting.extend(value.all_input_nodes)
        yield from sorted(missing, key=order.__getitem__)
        yield node
        made |= missing


def draws(node: fx.Node) -> bool:
    """Whether a node draws random numbers."""
    return node.target is draw_locally or (is_operator(node.target) and is_random(node.target))
