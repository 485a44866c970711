"""Where a rank's shard stands in the whole tensor: for operators that speak of positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from spmd_lab.layout import Layout
    from spmd_lab.local_graph import LocalGraphBuilder

__all__ = ["Window", "own_window"]


class Window(NamedTuple):
    """The consecutive positions of a dim that a rank holds."""

    start: int
    stop: int


def own_window(builder: LocalGraphBuilder, layout: Layout, dim: int) -> Window:
    """The positions of a dim that this rank holds; the dim must be divided in the order of the mesh."""
    for split in layout.splits(dim):
        builder.index(split.axis)
    runs = layout.runs(dim, builder.coordinate)
    assert len(runs) <= 1
    return Window(*runs[0]) if runs else Window(0, 0)
