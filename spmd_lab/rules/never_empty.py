"""Local programs of operators that cannot run on nothing: an empty shard is given an element, which is cut off after.

The added element is zero, so that it adds nothing to a sum over the dim that it stands in.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import fx

from spmd_lab.elements import held_lengths

if TYPE_CHECKING:
    from collections.abc import Callable

    from spmd_lab.layout import Layout
    from spmd_lab.local_graph import LocalGraphBuilder

__all__ = ["Shards", "never_empty"]


class Shards(NamedTuple):
    """What the local program works on: a node per tensor, and the shape of each."""

    nodes: tuple[fx.Node, ...]
    shapes: tuple[tuple[int, ...], ...]


def never_empty(
    needs: tuple[Layout, ...],
    outputs: tuple[Layout | None, ...],
    run: Callable[[LocalGraphBuilder, Shards], fx.Node | tuple[fx.Node | None, ...]],
) -> Callable[[LocalGraphBuilder, tuple[fx.Node, ...]], Any]:
    """The local program ``run``, on shards that have at least one element along every divided dim.

    Parameters
    ----------
    needs, outputs : tuple of Layout
        Those of the plan.
    run : callable
        Appends the operator to a builder; returns what a plan's ``emit`` does.
    """

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> Any:
        grown = tuple(_with_added(builder, node, need) for node, need in zip(nodes, needs, strict=True))
        made = run(builder, Shards(grown, tuple(_grown_shape(builder, need) for need in needs)))
        if not any(layout is not None and _dims_that_may_be_empty(layout) for layout in outputs):
            return made
        if len(outputs) == 1 and isinstance(made, fx.Node):
            return _without_added(builder, made, outputs[0])
        return tuple(
            None if layout is None else _without_added(builder, _item(builder, made, index), layout)
            for index, layout in enumerate(outputs)
        )

    return emit


def _item(builder: LocalGraphBuilder, made: fx.Node | tuple[fx.Node | None, ...], index: int) -> fx.Node:
    """One output of several, from the node that holds them all or from a tuple of nodes."""
    found = made[index] if isinstance(made, tuple) else builder.call(operator.getitem, made, index)
    assert found is not None
    return found


def _dims_that_may_be_empty(layout: Layout) -> list[int]:
    """The dims along which some rank holds nothing, though the tensor has elements there."""
    return [
        dim for dim, size in enumerate(layout.global_shape) if size and 0 in held_lengths(size, layout.splits(dim))[-1]
    ]


def _grown_shape(builder: LocalGraphBuilder, layout: Layout) -> tuple[int, ...]:
    grown = _dims_that_may_be_empty(layout)
    return tuple(max(size, 1) if dim in grown else size for dim, size in enumerate(builder.local_shape(layout)))


def _with_added(builder: LocalGraphBuilder, node: fx.Node, layout: Layout) -> fx.Node:
    shape = builder.local_shape(layout)
    for dim in _dims_that_may_be_empty(layout):
        node = builder.pad(node, len(shape), dim, int(shape[dim] == 0))
    return node


def _without_added(builder: LocalGraphBuilder, node: fx.Node, layout: Layout | None) -> fx.Node:
    if layout is not None:
        for dim in _dims_that_may_be_empty(layout):
            node = builder.narrow(node, dim, 0, builder.local_shape(layout)[dim])
    return node
