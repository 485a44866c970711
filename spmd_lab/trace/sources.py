"""The user's line behind every node, backward nodes too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.torch_internals.tracebacks import (
    autograd_number_of,
    is_backward,
    is_kept_by_policy,
    runs_in_autograd_node,
)
from spmd_lab.trace.recorder import KEY, REGION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

    from spmd_lab.trace.recorder import Recorder
    from spmd_lab.trace.values import Source

__all__ = ["attribute"]


def attribute(graph: fx.Graph, origin: Mapping[fx.Node, fx.Node], recorder: Recorder) -> None:
    """Leave in the meta of every node of a copied graph what `TracedGraph` says of it, and nothing else.

    A forward node has the line that was running. A backward node has the line that made the autograd node it runs
    in. Between autograd nodes gradients are added up: such a node has the line of the value that it adds. What has no
    line of its own (a constant tangent, a node that functionalisation made) takes that of its neighbours.
    """
    lines: dict[fx.Node, Source | None] = {}
    backward = False
    for node in graph.nodes:
        old = origin.get(node)
        if node.op in ("placeholder", "output"):
            node.meta = {"val": node.meta.get("val")}
            continue
        backward = backward or (old is None) or is_backward(old)
        lines[node] = _own_line(old, backward, recorder) or _line_of_arguments(node, lines)
        node.meta = {"val": node.meta.get("val"), "phase": "backward" if backward else "forward"}
        if old is not None and not backward and REGION in old.meta.get("custom", ()):
            node.meta["checkpoint"] = old.meta["custom"][REGION]
            node.meta |= {"kept": True} if is_kept_by_policy(old) else {}
    _fill_from_users(graph, lines)
    for node, source in lines.items():
        node.meta["source"] = source


def _own_line(old: fx.Node | None, backward: bool, recorder: Recorder) -> Source | None:
    if old is None:
        return None
    index: int | None = None
    if not backward:
        index = old.meta.get("custom", {}).get(KEY)
    elif runs_in_autograd_node(old):
        number = autograd_number_of(old)
        index = None if number is None else recorder.line_of_autograd_node(number)
    return None if index is None or index < 0 else recorder.sources[index]


def _line_of_arguments(node: fx.Node, lines: Mapping[fx.Node, Source | None]) -> Source | None:
    for argument in reversed(node.all_input_nodes):
        if lines.get(argument) is not None:
            return lines[argument]
    return None


def _fill_from_users(graph: fx.Graph, lines: dict[fx.Node, Source | None]) -> None:
    for node in reversed(graph.nodes):
        if node in lines and lines[node] is None:
            lines[node] = next((lines[user] for user in node.users if lines.get(user) is not None), None)
    last: Source | None = None
    for node in graph.nodes:
        if node in lines:
            last = lines[node] = lines[node] or last
