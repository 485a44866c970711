"""What values that are graphs have in common: pictures of themselves, and ways out to other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.shown import Shown

if TYPE_CHECKING:
    import os
    from pathlib import Path

    import networkx

    from spmd_lab.rebuild import Program
    from spmd_lab.show.picture import Picture

__all__ = ["Drawn"]


class Drawn(Shown):
    """A value that is a graph: a trace, the dispatch subgraph of a step, or what rank 0 runs of a program."""

    def draw(
        self,
        depth: int | None = None,
        around: str | None = None,
        hops: int = 1,
        only: str | None = None,
        once: bool = True,
        beside: Program | None = None,
    ) -> Picture:
        """The graph as a picture: the forward downward, the backward upward beside it, a box around each module.

        Colours are axes, and shapes are collectives. Where it would have more than 300 nodes, modules are closed, the
        innermost first; the picture says how many nodes are hidden.

        Parameters
        ----------
        depth : int, optional
            Close modules: 1 draws the outermost ones without what is in them, 2 those that are in these.
        around : str, optional
            Draw this node and those that are at most ``hops`` edges away. A step is meant by its name, too.
        hops : int
            See ``around``.
        only : "collectives", optional
            Draw nothing else; an edge says that what one gives reaches the next.
        once : bool
            Whether modules that repeat, as the blocks of a transformer do, are drawn once ("× 12").
        beside : Program, optional
            For a trace: where its nodes stand is where they stand in the picture of this program, of the same part,
            so that the two can be read side by side.

        Returns
        -------
        Picture
            It shows itself; ``save`` writes it as SVG, ``figure`` gives a figure of matplotlib.

        Raises
        ------
        ArgumentError
            If there is no such node or part, or ``beside`` is of another trace.

        Examples
        --------
        >>> import torch, spmd_lab as sl
        >>> expansion = sl.spmd_expand(lambda x: x.relu().sum(), torch.ones(4, 4), mesh=sl.Mesh(dp=2), batch="dp")
        >>> expansion.program.draw()
        <Picture: the program of rank 0 of <lambda>: 4 nodes>
        >>> expansion.traced.draw(beside=expansion.program)
        <Picture: the traced graph of <lambda>: 2 operators>
        """
        from spmd_lab.records import draw

        return draw(self, depth, around, hops, only, once, beside)

    def to_networkx(self) -> networkx.DiGraph[str]:
        """The graph for networkx: nodes by name, with their facts as attributes, and an edge to each reader.

        Returns
        -------
        networkx.DiGraph
            Attributes of a node are text, empty where there is nothing to say: ``kind`` ("input", "constant",
            "operator", "collective", "output"), ``op`` (the operator, or the kind of collective), ``phase``,
            ``module``, ``line`` (as "model.py:17"), ``step``, ``value`` (the traced value that it holds), ``layout``
            (the global tensor, in a trace) and ``axis``. ``payload_bytes`` is an int, 0 without communication.

        Examples
        --------
        >>> import torch, spmd_lab as sl
        >>> expansion = sl.spmd_expand(lambda x: x.sum(), torch.ones(4, 4), mesh=sl.Mesh(dp=2), batch="dp")
        >>> graph = expansion.program.to_networkx()
        >>> [(each["op"], each["axis"], each["payload_bytes"]) for each in graph.nodes.values() if each["axis"]]
        [('all_reduce', 'dp', 4)]
        """
        from spmd_lab.records import networkx_of

        return networkx_of(self)

    def to_svg(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture of the graph as SVG; that of a part of it is saved by ``draw(...).save(path)``."""
        return self.draw().save(path)

    def to_dot(self, path: str | os.PathLike[str]) -> Path:
        """Write the graph in the language of Graphviz, with the attributes that `to_networkx` gives."""
        from spmd_lab.records import save_dot

        return save_dot(self, path)
