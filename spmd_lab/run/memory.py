"""Whose memory a value is: what may be written into, and what has to be copied before it is given away."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch

from spmd_lab.torch_internals.operators import may_alias

if TYPE_CHECKING:
    from torch import fx

__all__ = ["Taken", "lent_inputs", "reduce_in_place"]

_aten, _c10d = torch.ops.aten, torch.ops._c10d_functional
_DENSE = (_aten.cat.default, _aten.mm.default)
"""Operators whose results are contiguous, and nobody else's."""


def reduce_in_place(graph: fx.Graph) -> None:
    """Let collectives reduce where their data lies, if nothing else reads it; else they copy it first."""
    for node in graph.find_nodes(op="call_function", target=_c10d.all_reduce.default):
        source = node.args[0]
        if source.target in _DENSE and len(source.users) == 1:
            node.target = _c10d.all_reduce_.default


def lent_inputs(graph: fx.Graph) -> tuple[int, ...]:
    """The positions of the inputs whose memory an output may share."""
    sources: dict[fx.Node, set[int]] = {}
    for position, node in enumerate(graph.find_nodes(op="placeholder")):
        sources[node] = {position}
    for node in graph.nodes:
        if node.op == "call_function" and (node.target is operator.getitem or may_alias(node.target)):
            sources[node] = set().union(*(sources.get(each, set()) for each in node.all_input_nodes))
    returned = graph.output_node().all_input_nodes
    return tuple(sorted(set().union(*(sources.get(each, set()) for each in returned))))


class Taken:
    """The memory that is somebody's already."""

    def __init__(self) -> None:
        self._parts: dict[int, list[tuple[int, int]]] = {}

    def whole(self, tensor: torch.Tensor) -> None:
        """Take all memory behind a tensor, as others may hold other views of it."""
        storage = tensor.untyped_storage()
        self._parts.setdefault(storage.data_ptr(), []).append((0, storage.nbytes()))

    def own(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor in memory that nobody else has: itself, or a copy.

        Examples
        --------
        >>> taken, x = Taken(), torch.zeros(4)
        >>> [taken.own(part).data_ptr() == part.data_ptr() for part in (x[:2], x[2:], x[1:3])]
        [True, True, False]
        """
        parts = self._parts.setdefault(tensor.untyped_storage().data_ptr(), [])
        start, end = _span(tensor)
        if any(start < other_end and other_start < end for other_start, other_end in parts):
            return tensor.clone()
        parts.append((start, end))
        return tensor


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor in its storage, and the one after its last."""
    if not tensor.numel():
        return 0, 0
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.storage_offset()
    return int(start * tensor.itemsize), int((start + reach + 1) * tensor.itemsize)
