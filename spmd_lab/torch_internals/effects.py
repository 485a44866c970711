"""Operators with side effects: exports thread tokens through them to keep their order; a graph has an order anyway."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import fx

__all__ = ["drop_tokens"]


def drop_tokens(graph_module: fx.GraphModule) -> None:
    """Call operators with side effects directly, and take their tokens out of what comes in and goes out."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.target is torch.ops.higher_order.with_effects:
            _call_directly(graph, node)
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    kept = [
        (value, description)
        for value, description in zip(output.args[0], output.meta["desc"], strict=True)
        if not _is_token(description)
    ]
    output.args = (tuple(value for value, _ in kept),)
    output.meta["desc"] = [description for _, description in kept]
    for node in list(graph.nodes):
        if node.op == "placeholder" and _is_token(node.meta["desc"]):
            graph.erase_node(node)


def _call_directly(graph: fx.Graph, node: fx.Node) -> None:
    """``with_effects(token, op, *args)`` gives a token, and what ``op(*args)`` gives."""
    _, op, *args = node.args
    with graph.inserting_before(node):
        made = graph.call_function(op, tuple(args), dict(node.kwargs))  # type: ignore[arg-type]
    values: Any = node.meta["val"][1:]
    several = len(values) > 1
    made.meta = {**node.meta, "val": tuple(values) if several else next(iter(values), None)}
    for user in list(node.users):
        position = int(user.args[1])  # type: ignore[arg-type]
        if position == 0:
            _forget(graph, user)
        elif several:
            with graph.inserting_before(user):
                part = graph.call_function(operator.getitem, (made, position - 1))
            part.meta = dict(user.meta)
            user.replace_all_uses_with(part)
            graph.erase_node(user)
        else:
            user.replace_all_uses_with(made)
            graph.erase_node(user)
    graph.erase_node(node)


def _forget(graph: fx.Graph, token: fx.Node) -> None:
    """Take a token away from those that wait for it; the output drops it by its description."""
    token.replace_all_uses_with(token.args[0].args[0])  # type: ignore[union-attr, arg-type]
    graph.erase_node(token)


def _is_token(description: object) -> bool:
    return "Token" in type(description).__name__
