"""What a notebook keeps of a widget: where no kernel answers, a page shows it as it stood."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spmd_lab.show.markup import Html, muted, tag
from spmd_lab.show.theme import FRAME

if TYPE_CHECKING:
    import ipywidgets as widgets

__all__ = ["bundle"]


def bundle(widget: widgets.Widget, text: str, still: str, move: str, **options: Any) -> Any:
    """The widget for a notebook that runs, and a still of it for any other page.

    Parameters
    ----------
    widget : ipywidgets.Widget
        What moves.
    text : str
        What it is, for a terminal.
    still : str
        What it shows now, as HTML.
    move : str
        What to call where a kernel runs, to move it.
    """
    hint = tag("div", muted(f"as it stood; to move it, run {move}"), style=FRAME)
    bundled = widget._repr_mimebundle_(**options)
    return {**bundled, "text/plain": text, "text/html": tag("div", Html(still), hint)}
