"""Values drawn for inputs that have none of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import fx

from spmd_lab.prove.pieces import is_inexact

if TYPE_CHECKING:
    from spmd_lab.trace.values import TracedGraph, TracedInput

__all__ = ["drawn", "index_bound"]

aten = torch.ops.aten


def drawn(traced: TracedGraph, each: TracedInput, generator: torch.Generator) -> torch.Tensor:
    """A value of the kind that an input is: no tangent is near zero, no variance is negative, indices exist.

    Parameters
    ----------
    traced : TracedGraph
        The program; it shows how integers are used.
    each : TracedInput
        The input.
    generator : torch.Generator
        Where the values come from, on the CPU.
    """
    shape, dtype = each.global_shape, each.dtype
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not is_inexact(dtype):
        return torch.randint(0, max(index_bound(traced.node(each.node)), 1), shape, generator=generator).to(dtype)
    if each.role == "tangent":
        signs = torch.randint(0, 2, shape, generator=generator) * 2 - 1
        return (signs * (0.5 + torch.rand(shape, generator=generator))).to(dtype)
    if each.role == "buffer":
        return (0.5 + torch.rand(shape, generator=generator)).to(dtype)
    scale = 0.1 if each.role == "parameter" else 1.0
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


_INDEX_OF: dict[object, tuple[int, int | None]] = {
    aten.embedding.default: (0, 0),
    aten.index_select.default: (0, None),
    aten.gather.default: (0, None),
    aten.scatter.value: (0, None),
    aten.scatter.src: (0, None),
    aten.nll_loss_forward.default: (0, -1),
    aten.nll_loss2d_forward.default: (0, 1),
}
"""Operators that take indices: the position of what they index, and its dim (None: that is an argument too)."""
_FORWARDING = (
    "view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "expand", "permute", "t", "transpose", "slice", "select",
    "clone", "_to_copy", "alias", "detach",
)  # fmt: skip
"""Operators that hand indices on."""


def index_bound(node: fx.Node) -> int:
    """The smallest number that is too large as an index where a value is used as one; 2 where it is used otherwise.

    Parameters
    ----------
    node : torch.fx.Node
        The node that holds the integers.
    """
    return min(_bounds(node), default=2)


def _bounds(node: fx.Node) -> list[int]:
    """What each use of a value as an index allows."""
    return [bound for user in node.users for bound in _bounds_in(node, user)]


def _bounds_in(node: fx.Node, user: fx.Node) -> list[int]:
    if user.target in _INDEX_OF:
        position, dim = _INDEX_OF[user.target]
        indexed = user.args[position]
        assert isinstance(indexed, fx.Node)
        shape = indexed.meta["val"].shape
        where = user.args[1] if dim is None else dim
        return [int(shape[int(str(where))]) if shape else 1] if indexed is not node else []
    if user.target is aten.index.Tensor:
        indexed, indices = user.args
        assert isinstance(indexed, fx.Node)
        assert isinstance(indices, (list, tuple))
        sizes = indexed.meta["val"].shape
        return [int(sizes[dim]) for dim, index in enumerate(indices) if index is node]
    return _bounds(user) if str(user.target).partition(".")[2].partition(".")[0] in _FORWARDING else []
