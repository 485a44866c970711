"""The outlines of the nodes of a picture, and their colours.

Operators are round at the corners, modules have a thin frame, and each kind of collective has an outline that echoes
its symbol: round ends, sharp corners, narrow below, pointed sides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.show.theme import BACKWARD, FORWARD, GREY, SYMBOLS, axis_colour

if TYPE_CHECKING:
    from spmd_lab.show.graph_records import NodeRecord

__all__ = ["corners", "fill_of", "has_frame", "line_colour", "radius"]


def fill_of(node: NodeRecord) -> str | None:
    """The colour that fills a node; None for one that is not filled."""
    if node.shape in SYMBOLS:
        return axis_colour(node.axis)
    if node.shape != "op":
        return None
    return BACKWARD if node.backward else FORWARD


def line_colour(node: NodeRecord, position: int) -> str:
    """The colour of one of the lines of a node."""
    if fill_of(node) is not None:
        return "white"
    return axis_colour(node.line_axes[position]) if node.line_axes else GREY


def has_frame(node: NodeRecord) -> bool:
    """Whether a thin frame surrounds a node."""
    return node.shape in ("local", "module")


def radius(node: NodeRecord, height: float) -> float:
    """How round the corners of a node are."""
    return {"all_reduce": height / 2, "all_gather": 0.0}.get(node.shape, 6.0)


def corners(node: NodeRecord, width: float, height: float) -> list[tuple[float, float]] | None:
    """The corners of a node that is no rectangle, from its centre."""
    x, y = width / 2, height / 2
    if node.shape == "reduce_scatter":
        return [(-x, -y), (x, -y), (x - _SLANT, y), (-x + _SLANT, y)]
    if node.shape in SYMBOLS and node.shape not in ("all_reduce", "all_gather"):
        return [(-x, 0.0), (-x + _SLANT, -y), (x - _SLANT, -y), (x, 0.0), (x - _SLANT, y), (-x + _SLANT, y)]
    return None


_SLANT = 11.0
