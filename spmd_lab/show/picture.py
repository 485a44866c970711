"""A picture as a value: it shows itself in a notebook, and saves itself."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import singledispatch
from typing import TYPE_CHECKING

from spmd_lab.errors import ArgumentError
from spmd_lab.files import write_text
from spmd_lab.show.graph_records import GraphRecord
from spmd_lab.show.graph_svg import graph_svg
from spmd_lab.show.grid_records import ChangeRecord, GridRecord
from spmd_lab.show.grid_svg import change_svg, grid_svg
from spmd_lab.show.markup import image

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from matplotlib.figure import Figure

__all__ = ["Picture", "picture"]


@dataclass(frozen=True, repr=False)
class Picture:
    """An SVG picture.

    Parameters
    ----------
    svg : str
        The picture.
    alt : str
        What it shows, in words.
    record : GraphRecord or None
        The graph that it shows, where it shows one.
    """

    svg: str
    alt: str
    record: GraphRecord | None = field(default=None, compare=False)

    def figure(self) -> Figure:
        """The picture of a graph as a figure of matplotlib, to put into a report or to save in its formats.

        Raises
        ------
        ArgumentError
            If this is a picture of a layout.
        """
        from spmd_lab.show.graph_figure import graph_figure

        if self.record is None:
            raise ArgumentError("only the picture of a graph is a figure", argument="picture", hint="picture.save()")
        return graph_figure(self.record)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture to a file.

        Parameters
        ----------
        path : path
            A name that ends in ``.svg``, in a folder that exists.

        Raises
        ------
        ArgumentError
            If the name ends otherwise, or there is no such folder.
        """
        if not str(path).endswith(".svg"):
            raise ArgumentError(
                "a picture is saved as SVG", argument=f"path={str(path)!r}", hint="a name that ends in .svg"
            )
        return write_text(path, self.svg)

    def __repr__(self) -> str:
        return f"<Picture: {self.alt}>"

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        return image(self.svg, self.alt, width=self.width)

    @property
    def width(self) -> float:
        """How wide the picture is, in points."""
        found = re.search(r'width="([\d.]+)"', self.svg)
        assert found is not None
        return float(found[1])


@singledispatch
def picture(record: object) -> Picture:
    """The picture of a record.

    Examples
    --------
    >>> from spmd_lab.show.graph_records import EdgeRecord, GraphRecord, NodeRecord
    >>> nodes = (NodeRecord("x", "operand", ("x",)), NodeRecord("relu", "op", ("relu",)))
    >>> picture(GraphRecord("a graph", False, nodes, (EdgeRecord("x", "relu"),)))
    <Picture: a graph>
    """
    raise TypeError(f"no picture of a {type(record).__name__}")


@picture.register
def _graph(record: GraphRecord) -> Picture:
    return Picture(graph_svg(record), record.alt, record)


@picture.register
def _grid(record: GridRecord) -> Picture:
    return Picture(grid_svg(record), record.alt)


@picture.register
def _change(record: ChangeRecord) -> Picture:
    return Picture(change_svg(record), record.alt)
