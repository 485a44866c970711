"""What the backward reads of the forward: kept until then, or computed once more where a checkpoint says so."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import fx

from spmd_lab.collectives import WAIT, is_collective
from spmd_lab.streams import draw_locally
from spmd_lab.torch_internals.operators import is_operator, is_random

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Recomputed", "draws", "in_time", "recomputed"]


class Recomputed(NamedTuple):
    """What becomes of the values that the backward reads of the forward.

    Parameters
    ----------
    kept : list of fx.Node
        Those that are saved for it, in order; constants are in both halves.
    again : set of fx.Node
        What it computes once more.
    instead : dict of fx.Node to fx.Node
        What it has anyhow, of what is computed once more from something else: a parameter that it gathers itself.
    """

    kept: list[fx.Node]
    again: set[fx.Node]
    instead: dict[fx.Node, fx.Node]


def recomputed(graph: fx.Graph, early: set[fx.Node], results: Sequence[Any], wanted: Sequence[Any]) -> Recomputed:
    """Decide what the backward takes over from the forward, and what it computes once more.

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
    repeatable, instead = _recomputable(graph, early, results), _gathered_again(graph, early)
    kept, again = set[fx.Node](), set[fx.Node]()
    while waiting:
        node = waiting.pop()
        if node in again or node in instead:
            continue
        if node in repeatable:
            again.add(node)
            waiting.extend(node.all_input_nodes)
        else:
            kept.add(node)
    return Recomputed([node for node in graph.nodes if node in kept and node.op != "get_attr"], again, instead)


def _gathered_again(graph: fx.Graph, early: set[fx.Node]) -> dict[fx.Node, fx.Node]:
    """Each parameter that is gathered in the forward, and the same one, gathered in the backward."""
    holders = {str(node.meta["spmd_value"]): node for node in graph.nodes if "spmd_value" in node.meta}
    again = {name: node for name, node in holders.items() if name.startswith("regather:") and node not in early}
    return {holders[first]: node for name, node in again.items() if (first := name.removeprefix("re")) in holders}


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


def in_time(graph: fx.Graph, early: set[fx.Node], found: Recomputed) -> Iterator[fx.Node]:
    """The nodes of the backward, in order, each behind what it needs: what is computed once more, in time for it."""
    made = early - found.again
    for last in graph.nodes:
        waiting = [] if last in early else [last]
        while waiting:
            node = waiting[-1]
            needs = [found.instead.get(each, each) for each in node.all_input_nodes]
            missing = [each for each in needs if each not in made]
            if missing:
                waiting.extend(missing)
                continue
            waiting.pop()
            if node not in made:
                made.add(node)
                yield node


def draws(node: fx.Node) -> bool:
    """Whether a node draws random numbers."""
    return node.target is draw_locally or (is_operator(node.target) and is_random(node.target))
