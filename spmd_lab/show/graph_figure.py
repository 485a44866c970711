"""A graph as a figure of matplotlib, where its SVG has the same boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.show.graph_layout import lay_out
from spmd_lab.show.theme import BACKWARD, FORWARD, GREY, SYMBOLS, axis_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from spmd_lab.show.graph_layout import Box
    from spmd_lab.show.part_records import GraphRecord

__all__ = ["graph_figure"]

_POINTS_PER_INCH, _MARGIN = 72.0, 4.0


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
    for curve in placed.curves:
        codes = [Path.MOVETO, *[Path.CURVE4] * (len(curve.points) - 1), Path.LINETO]
        path = Path([*curve.points, curve.tip], codes)
        axes.add_patch(FancyArrowPatch(path=path, arrowstyle="-|>", mutation_scale=7, color=GREY, linewidth=0.8))
    for tail, head in placed.far:
        axes.plot([tail.x, head.x], [tail.y, head.y], color=GREY, alpha=0.4, linestyle=":", linewidth=0.8)
    for box in placed.boxes:
        _box(axes, box)
    return figure


def _box(axes: Axes, box: Box) -> None:
    from matplotlib.patches import FancyBboxPatch, Polygon

    shape = box.node.shape
    fill = axis_colour(box.node.axis) if shape in SYMBOLS else _FILLS.get(shape)
    half_width, half_height = box.width / 2, box.height / 2
    if shape in SYMBOLS:
        across = [(-half_width, 0.0), (8 - half_width, -half_height), (half_width - 8, -half_height)]
        outline = [*across, *((-x, -y) for x, y in across)]
        axes.add_patch(Polygon([(box.x + x, box.y + y) for x, y in outline], facecolor=fill))
    elif shape not in ("operand", "output"):
        corner = (box.x - half_width + 3, box.y - half_height + 3)
        size = (box.width - 6, box.height - 6)
        axes.add_patch(
            FancyBboxPatch(corner, *size, boxstyle="round,pad=3", facecolor=fill or "none", edgecolor=fill or GREY)
        )
    mark = f"{SYMBOLS[shape]} " if shape in SYMBOLS else ""
    told = mark + "\n".join(box.node.lines)
    colour = "white" if fill else GREY
    axes.text(box.x, box.y, told, ha="center", va="center", family="DejaVu Sans Mono", size=8, color=colour)


_FILLS = {"op": FORWARD, "backward op": BACKWARD, "module": FORWARD}
