"""Graph modules that are given a list, and empty it: nobody else holds what they no longer need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.fx.graph import _BoxedCodeGen

if TYPE_CHECKING:
    from torch import fx

__all__ = ["take_list"]


def take_list(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Let a graph module take its arguments in one list, which it empties.

    Examples
    --------
    >>> import torch
    >>> add = take_list(torch.fx.symbolic_trace(lambda x, y: x + y))
    >>> values = [1, 2]
    >>> add(values), values
    (3, [])
    """
    graph_module.graph.set_codegen(_BoxedCodeGen())
    graph_module.recompile()
    return graph_module
