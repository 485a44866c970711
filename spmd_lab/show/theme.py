"""Every colour and style, in one place.

Pages are read on white and on black, so each colour has a contrast of at least 4.5 to 1 on both: the hues of Okabe and
Ito ("Color Universal Design", 2008), brought to the one lightness that allows it. Text takes the page's own colour, or
leans towards it: the greys that notebooks take for a dark ground leave less contrast than black does.
Styles stand in the elements, because a notebook that is not trusted drops style sheets.
"""

from __future__ import annotations

__all__ = [
    "AXIS_COLOURS",
    "BACKWARD",
    "BAD",
    "CELL",
    "CODE",
    "FORWARD",
    "FRAME",
    "GOOD",
    "GREY",
    "GROUND",
    "INDENT",
    "MUTED",
    "NOWRAP",
    "PENDING",
    "SCROLL",
    "SYMBOLS",
    "TABLE",
    "axis_colour",
    "badge",
    "column",
    "ink",
]

GROUND = "@media (prefers-color-scheme: dark){:root{background:black}}"
"""Of a page of its own: browsers would take a grey on which colours stand out less."""
AXIS_COLOURS = ("#007BC0", "#C15500", "#008661", "#BC4E8B", "#9D6C00")
"""Blue, vermilion, bluish green, reddish purple, orange."""
GOOD, BAD, GREY, FORWARD, BACKWARD = "#008661", "#E12B2B", "#757575", "#677786", "#856C95"

SYMBOLS = {"all_reduce": "●", "all_gather": "■", "reduce_scatter": "▼", "all_to_all": "◆"}
"""What stands for each kind of collective, beside its name."""

FRAME = "font-size:13px;line-height:1.5;max-width:1100px"
CODE = "font-family:monospace"
MUTED = "opacity:.7"
PENDING = "border:1px dashed;margin-left:2px"
TABLE = "border-collapse:collapse;margin:4px 0;font-size:inherit"
CELL = "text-align:left;vertical-align:top;padding:1px 14px 1px 0"
NOWRAP = "white-space:nowrap"
SCROLL = "overflow:auto;margin:4px 0"
INDENT = "margin-left:1.2em"


def axis_colour(axis: int) -> str:
    """The colour of the axis at this position of the mesh; grey for no axis."""
    return GREY if axis < 0 else AXIS_COLOURS[axis % len(AXIS_COLOURS)]


def ink(colour: str) -> str:
    """The colour of text, brought nearer to the page's own; symbols and bars, which are no text, keep theirs."""
    return f"color:{colour};color:color-mix(in srgb,{colour} 70%,currentColor)"


def badge(colour: str) -> str:
    """A filled label."""
    return f"background:{colour};color:white;border-radius:9px;padding:1px 9px"


def column(width: float, grows: bool = False) -> str:
    """A column of a row that breaks into lines where the page is narrow; one that ``grows`` wraps within itself."""
    bound = f"max-width:{width:g}em" if grows else f"min-width:{width:g}em;margin-right:8px"
    return f"display:inline-block;vertical-align:top;{bound}"
