"""The shape of each kind of collective: a circle, a square, a triangle, a diamond."""

from __future__ import annotations

from spmd_lab.show.svg import element, number

__all__ = ["symbol", "symbol_path"]


def symbol(kind: str, x: float, y: float, size: float, fill: str) -> str:
    """The shape of a kind, centred at a point."""
    return element("path", d=symbol_path(kind, x, y, size), fill=fill)


def symbol_path(kind: str, x: float, y: float, size: float) -> str:
    """The outline of the shape of a kind, as the ``d`` of a path, which others can follow.

    Examples
    --------
    >>> symbol_path("all_gather", 10.0, 10.0, 8)
    'M6,6h8v8h-8z'
    """
    half, left, top = size / 2, number(x - size / 2), number(y - size / 2)
    whole, part = number(size), f"{half:g}"
    if kind == "all_reduce":
        return f"M{left},{number(y)}a{part},{part} 0 1 0 {whole},0a{part},{part} 0 1 0 -{whole},0z"
    if kind == "all_gather":
        return f"M{left},{top}h{whole}v{whole}h-{whole}z"
    if kind == "reduce_scatter":
        return f"M{left},{top}h{whole}l-{part},{whole}z"
    return f"M{number(x)},{top}l{part},{part}l-{part},{part}l-{part},-{part}z"
