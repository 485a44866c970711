"""A graph as SVG: text for what comes in and out, filled boxes for operators, hexagons for collectives."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from spmd_lab.show.graph_layout import LINE, lay_out
from spmd_lab.show.svg import document, element, path_of, text_element
from spmd_lab.show.symbols import symbol
from spmd_lab.show.theme import BACKWARD, FORWARD, GREY, SYMBOLS, axis_colour

if TYPE_CHECKING:
    from spmd_lab.show.graph_layout import Box, Curve
    from spmd_lab.show.part_records import GraphRecord

__all__ = ["graph_svg"]

_MARGIN, _FONT_SIZE, _ARROW = 4.0, 11.0, 7.0
_FILLS = {"op": FORWARD, "backward op": BACKWARD, "module": FORWARD}


def graph_svg(record: GraphRecord) -> str:
    """The picture of a graph."""
    placed = lay_out(record)
    far = [_across(*ends) for ends in placed.far]
    parts = [*far, *(_curve(curve) for curve in placed.curves), *(_box(box) for box in placed.boxes)]
    moved = element("g", "".join(parts), transform=f"translate({_MARGIN:g},{_MARGIN:g})", font_size=_FONT_SIZE)
    return document(placed.width + 2 * _MARGIN, placed.height + 2 * _MARGIN, record.alt, [moved], "monospace")


def _curve(curve: Curve) -> str:
    line = element("path", d=path_of(curve.points, "C"), fill="none", stroke=GREY)
    return line + _arrow(curve.points[-1], curve.tip)


def _across(tail: Box, head: Box) -> str:
    """A light line between the sides of two boxes that face each other."""
    side = 1 if head.x > tail.x else -1
    points = [(tail.x + side * tail.width / 2, tail.y), (head.x - side * head.width / 2, head.y)]
    return element("path", d=path_of(points), stroke=GREY, stroke_opacity="0.4", stroke_dasharray="3 3")


def _arrow(start: tuple[float, float], tip: tuple[float, float]) -> str:
    angle = math.atan2(tip[1] - start[1], tip[0] - start[0])
    back = [
        (tip[0] - _ARROW * math.cos(angle + turn), tip[1] - _ARROW * math.sin(angle + turn)) for turn in (0.4, -0.4)
    ]
    return element("path", d=path_of([tip, *back], closed=True), fill=GREY)


def _box(box: Box) -> str:
    return _outline(box) + _label(box)


def _outline(box: Box) -> str:
    """The shape of a node."""
    left, top = box.x - box.width / 2, box.y - box.height / 2
    shape = box.node.shape
    if shape in SYMBOLS:
        return _hexagon(box, axis_colour(box.node.axis))
    if shape in _FILLS:
        return element("rect", x=left, y=top, width=box.width, height=box.height, rx=6, fill=_FILLS[shape])
    if shape == "local":
        return element("rect", x=left, y=top, width=box.width, height=box.height, rx=6, fill="none", stroke=GREY)
    return ""


def _hexagon(box: Box, fill: str) -> str:
    half_width, half_height, corner = box.width / 2, box.height / 2, 8.0
    points = [
        (box.x - half_width, box.y),
        (box.x - half_width + corner, box.y - half_height),
        (box.x + half_width - corner, box.y - half_height),
        (box.x + half_width, box.y),
        (box.x + half_width - corner, box.y + half_height),
        (box.x - half_width + corner, box.y + half_height),
    ]
    return element("path", d=path_of(points, closed=True), fill=fill)


def _label(box: Box) -> str:
    """The lines of a node; a collective has the symbol of its kind in front."""
    shape = box.node.shape
    fill = "white" if shape in SYMBOLS or shape in _FILLS else GREY
    top = box.y - len(box.node.lines) * LINE / 2 + LINE - 3.5
    middle = box.x + 5 if shape in SYMBOLS else box.x
    lines = "".join(
        text_element(line, middle, top + LINE * position, text_anchor="middle", fill=fill)
        for position, line in enumerate(box.node.lines)
    )
    if shape not in SYMBOLS:
        return lines
    return symbol(shape, box.x - box.width / 2 + 14, box.y, 8, "white") + lines
