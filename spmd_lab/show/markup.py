"""Small functions from which HTML grows. Text becomes `Html` through `escaped` alone."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, NewType

from spmd_lab.show.escaping import escape_text
from spmd_lab.show.theme import CELL, CODE, INDENT, MUTED, NOWRAP, SCROLL, TABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Html", "bold", "code", "details", "escaped", "image", "joined", "muted", "pre", "scrolled", "table", "tag"]

Html = NewType("Html", str)


def escaped(text: str) -> Html:
    """Text as HTML that shows it.

    Examples
    --------
    >>> escaped("<script>")
    '&lt;script&gt;'
    """
    return Html(escape_text(text))


def joined(parts: Iterable[Html], separator: str = "") -> Html:
    """Pieces one after the other, with text between them."""
    return Html(escape_text(separator).join(parts))


def tag(name: str, *children: Html, style: str = "") -> Html:
    """An element.

    Examples
    --------
    >>> tag("b", escaped("a & b"), style="color:red")
    '<b style="color:red">a &amp; b</b>'
    """
    opening = f'{name} style="{escape_text(style)}"' if style else name
    return Html(f"<{opening}>{joined(children)}</{name}>")


def bold(text: str, style: str = "") -> Html:
    """Bold text."""
    return tag("b", escaped(text), style=style)


def muted(text: str) -> Html:
    """Text that steps back."""
    return tag("span", escaped(text), style=MUTED)


def code(*children: Html) -> Html:
    """Code within a line."""
    return tag("span", *children, style=CODE)


def pre(*children: Html) -> Html:
    """Lines of code."""
    return scrolled("pre", *children, style=f"{CODE};{SCROLL};line-height:1.35")


def details(summary: Html, *body: Html, opened: bool = False) -> Html:
    """A line that unfolds; without a body, the line alone."""
    if not any(body):
        return tag("div", summary, style=INDENT)
    opening = "<details open>" if opened else "<details>"
    return Html(f"{opening}<summary>{summary}</summary>{tag('div', *body, style=INDENT)}</details>")


def table(heading: Sequence[str], rows: Iterable[Sequence[Html]]) -> Html:
    """A table with a heading."""
    head = tag("tr", *(tag("th", escaped(cell), style=f"{CELL};{NOWRAP}") for cell in heading))
    body = joined(tag("tr", *(tag("td", cell, style=CELL) for cell in row)) for row in rows)
    whole = tag("table", tag("thead", head), tag("tbody", body), style=TABLE)
    return scrolled("div", whole, style=SCROLL)


def scrolled(name: str, *children: Html, style: str) -> Html:
    """An element that may be wider than the page: the keyboard reaches it, to scroll it."""
    return Html(f'<{name} tabindex="0" style="{escape_text(style)}">{joined(children)}</{name}>')


def image(svg: str, alt: str, width: float = 0) -> Html:
    """A picture that carries its own data; a page scrolls it rather than make it too small to be read."""
    data = b64encode(svg.encode()).decode()
    least = width * _READABLE if width > _WIDE else 0
    style = f"max-width:100%;min-width:{least:.0f}px" if least else "max-width:100%"
    found = Html(f'<img alt="{escape_text(alt)}" style="{style}" src="data:image/svg+xml;base64,{data}">')
    return scrolled("div", found, style=SCROLL) if least else found


_WIDE, _READABLE = 1400, 0.7
