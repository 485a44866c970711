"""The collectives that the graph of a rank may hold: what each does, and the group that it names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from torch import fx

__all__ = ["WAIT", "CollectiveKind", "axis_of", "group_argument", "is_collective", "kind_of"]

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
"""What a collective does."""

_c10d = torch.ops._c10d_functional

WAIT = _c10d.wait_tensor.default
"""What waits for the result of a collective."""

_COLLECTIVES: dict[object, tuple[CollectiveKind, int]] = {
    _c10d.all_reduce.default: ("all_reduce", 2),
    _c10d.all_gather_into_tensor.default: ("all_gather", 2),
    _c10d.reduce_scatter_tensor.default: ("reduce_scatter", 3),
    _c10d.all_to_all_single.default: ("all_to_all", 3),
    torch.ops._dtensor.shard_dim_alltoall.default: ("all_to_all", 3),
}
"""What each operator does, and which of its arguments names the group."""


def is_collective(node: fx.Node) -> bool:
    """Whether ranks communicate in a node (waiting for it does not count)."""
    return node.target in _COLLECTIVES


def kind_of(node: fx.Node) -> CollectiveKind | None:
    """What a node does, if ranks communicate in it.

    Examples
    --------
    >>> from torch import fx
    >>> graph = fx.Graph()
    >>> node = graph.call_function(_c10d.all_gather_into_tensor.default, (graph.placeholder("x"), 4, "tp"))
    >>> kind_of(node), axis_of(node), kind_of(graph.call_function(WAIT, (node,)))
    ('all_gather', 'tp', None)
    """
    found = _COLLECTIVES.get(node.target)
    return None if found is None else found[0]


def group_argument(node: fx.Node) -> int:
    """The position of the argument of a collective that names its group."""
    return _COLLECTIVES[node.target][1]


def axis_of(node: fx.Node) -> str:
    """The axis that a collective of a program, not yet bound, names as its group."""
    return str(node.args[group_argument(node)])
