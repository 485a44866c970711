"""A graph as a figure of matplotlib, where its SVG has the same boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spmd_lab.show.graph_layout import lay_out
from spmd_lab.show.graph_shapes import corners, fill_of, has_frame, radius
from spmd_lab.show.theme import BACKWARD, FORWARD, GREY, SYMBOLS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from spmd_lab.show.graph_layout import Box
    from spmd_lab.show.graph_records import GraphRecord

__all__ = ["graph_figure"]

_POINTS_PER_INCH, _MARGIN = 72.0, 4.0
_FONT: dict[str, Any] = {"family": "DejaVu Sans Mono", "size": 8}


def graph_figure(record: GraphRecord) -> Figure:
    """The picture of a graph as a figure, of the size that it needs."""
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    placed = lay_out(record)
    width, height = placed.width + 2 * _MARGIN, placed.height + 2 * _MARGIN
    figure = Figure(figsize=(width / _POINTS_PER_INCH, height / _POINTS_PER_INCH))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(-_MARGIN, placed.width + _MARGIN)
    axes.set_ylim(placed.height + _MARGIN, -_MARGIN)
    axes.set_axis_off()
    for frame in placed.frames:
        _framed(axes, frame.x, frame.y, frame.width, frame.height)
    for curve in placed.curves:
        codes = [Path.MOVETO, *[Path.CURVE4] * (len(curve.points) - 1), Path.LINETO]
        path = Path([*curve.points, curve.tip], codes)
        axes.add_patch(FancyArrowPatch(path=path, arrowstyle="-|>", mutation_scale=7, color=GREY, linewidth=0.8))
    for tail, head in placed.far:
        axes.plot([tail.x, head.x], [tail.y, head.y], color=GREY, alpha=0.4, linestyle=":", linewidth=0.8)
    for box in placed.boxes:
        _box(axes, box)
    for frame in placed.frames:
        axes.text(frame.x + 8, frame.y + 14, frame.title, color=GREY, weight="bold", **_FONT)
    for heading in placed.headings:
        colour = BACKWARD if heading.backward else FORWARD
        axes.text(heading.x, heading.y, heading.text, color=colour, weight="bold", **_FONT)
    if record.remark:
        axes.text(0, placed.height - 4, record.remark, color=GREY, **_FONT)
    return figure


def _box(axes: Axes, box: Box) -> None:
    from matplotlib.patches import Polygon

    node, fill = box.node, fill_of(box.node)
    left, top = box.x - box.width / 2, box.y - box.height / 2
    outline = corners(node, box.width, box.height)
    if has_frame(node):
        _framed(axes, left, top, box.width, box.height)
    elif outline is not None:
        axes.add_patch(Polygon([(box.x + x, box.y + y) for x, y in outline], facecolor=fill))
    elif fill is not None:
        _rounded(axes, left, top, box.width, box.height, radius(node, box.height), facecolor=fill)
    mark = f"{SYMBOLS[node.shape]} " if node.shape in SYMBOLS else ""
    colour = "white" if fill else GREY
    axes.text(box.x, box.y, mark + "\n".join(node.lines), ha="center", va="center", color=colour, **_FONT)


def _framed(axes: Axes, x: float, y: float, width: float, height: float) -> None:
    _rounded(axes, x, y, width, height, 6, facecolor="none", edgecolor=(*_GREY_PARTS, 0.5))


_GREY_PARTS = tuple(int(GREY[at : at + 2], 16) / 255 for at in (1, 3, 5))


def _rounded(axes: Axes, x: float, y: float, width: float, height: float, corner: float, **look: Any) -> None:
    from matplotlib.patches import FancyBboxPatch

    style = f"round,pad=0,rounding_size={corner:g}" if corner else "square,pad=0"
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, **look))
