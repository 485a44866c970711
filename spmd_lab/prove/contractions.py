"""Which dims of their operands the commonest operators sum over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import fx

__all__ = ["summed_dims"]

aten = torch.ops.aten

_PRODUCTS: dict[object, dict[int, int]] = {
    aten.mm.default: {0: 1, 1: 0},
    aten.bmm.default: {0: 2, 1: 1},
    aten.addmm.default: {1: 1, 2: 0},
}
"""For each operand of a product, the dim that is summed over."""
_SUMS = (aten.sum.default, aten.mean.default, aten.sum.dim_IntList, aten.mean.dim)


def summed_dims(node: fx.Node) -> dict[int, tuple[int, ...]]:
    """The dims that a call sums over, by the position of the operand; empty where that is not known.

    Examples
    --------
    >>> from torch import fx
    >>> graph = fx.Graph()
    >>> a, b = graph.placeholder("a"), graph.placeholder("b")
    >>> summed_dims(graph.call_function(aten.mm.default, (a, b)))
    {0: (1,), 1: (0,)}
    """
    if node.target in _PRODUCTS:
        return {position: (dim,) for position, dim in _PRODUCTS[node.target].items()}
    if node.target not in _SUMS:
        return {}
    ndim = node.all_input_nodes[0].meta["val"].ndim
    dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if not dims or not isinstance(dims, (list, tuple)):
        return {0: tuple(range(ndim))}
    return {0: tuple(int(str(dim)) % ndim for dim in dims)} if ndim else {}
