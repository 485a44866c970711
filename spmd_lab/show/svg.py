"""Small functions from which SVG grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.show.escaping import escape_text

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["document", "element", "number", "path_of", "text_element"]


def number(value: float) -> str:
    """A coordinate: one decimal, none where it is whole.

    Examples
    --------
    >>> number(3.0), number(2.449)
    ('3', '2.4')
    """
    return f"{round(value, 1):g}"


def element(name: str, content: str = "", **attributes: str | float) -> str:
    """An element; underscores in the names of attributes stand for hyphens.

    Examples
    --------
    >>> element("rect", x=1.0, stroke_width=2.5)
    '<rect x="1" stroke-width="2.5"/>'
    """
    written = "".join(
        f' {key.replace("_", "-")}="{escape_text(value) if isinstance(value, str) else number(value)}"'
        for key, value in attributes.items()
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def text_element(text: str, x: float, y: float, **attributes: str | float) -> str:
    """Text whose baseline starts at a point."""
    return element("text", escape_text(text), x=x, y=y, **attributes)


def path_of(points: Iterable[tuple[float, float]], letter: str = "L", closed: bool = False) -> str:
    """The ``d`` of a path: lines, or curves with ``letter="C"``."""
    first, *rest = (f"{number(x)},{number(y)}" for x, y in points)
    return f"M{first} {letter}{' '.join(rest)}{' Z' if closed else ''}"


def document(width: float, height: float, alt: str, parts: Iterable[str], font: str) -> str:
    """A whole picture, with its description as the title."""
    body = element("title", escape_text(alt)) + "".join(parts)
    return element(
        "svg",
        body,
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        width=width,
        height=height,
        viewBox=f"0 0 {number(width)} {number(height)}",
        font_family=font,
    )
