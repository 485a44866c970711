"""The shape of each kind of collective: a circle, a square, a triangle, a diamond."""

from __future__ import annotations

from spmd_lab.show.svg import element, path_of

__all__ = ["symbol"]


def symbol(kind: str, x: float, y: float, size: float, fill: str) -> str:
    """The shape of a kind, centred at a point."""
    half = size / 2
    if kind == "all_reduce":
        return element("circle", cx=x, cy=y, r=half, fill=fill)
    if kind == "all_gather":
        return element("rect", x=x - half, y=y - half, width=size, height=size, fill=fill)
    if kind == "reduce_scatter":
        points = [(x - half, y - half), (x + half, y - half), (x, y + half)]
    else:
        points = [(x, y - half), (x + half, y), (x, y + half), (x - half, y)]
    return element("path", d=path_of(points, closed=True), fill=fill)
