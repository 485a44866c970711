"""What values that are graphs have in common: pictures of themselves, and ways out to other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from pathlib import Path

    import networkx

    from spmd_lab.show.picture import Picture

__all__ = ["Drawn"]


class Drawn:
    """A value that is a graph: a trace, the dispatch subgraph of a step, or what rank 0 runs of a program."""

    def draw(
        self, depth: int | None = None, around: str | None = None, hops: int = 1, only: str | None = None
    ) -> Picture:
        """The graph as a picture; by modules where it has more than 300 nodes.

        Parameters
        ----------
        depth : int, optional
            Draw modules instead of nodes, those of so many names in their paths.
        around : str, optional
            Draw this node and those that are at most ``hops`` edges away.
        hops : int
            See ``around``.
        only : "collectives", optional
            Draw nothing else; an edge says that what one gives reaches the next.

        Returns
        -------
        Picture
            It shows itself; ``save`` writes it as SVG, ``figure`` gives a figure of matplotlib.
        """
        from spmd_lab.records import draw

        return draw(self, depth, around, hops, only)

    def to_networkx(self) -> networkx.DiGraph[str]:
        """The graph for networkx; its nodes have kind, op, phase, module, line, step, value, layout, axis, bytes."""
        from spmd_lab.records import networkx_of

        return networkx_of(self)

    def to_dot(self, path: str | os.PathLike[str]) -> Path:
        """Write the graph in the language of Graphviz."""
        from spmd_lab.records import save_dot

        return save_dot(self, path)
