"""A graph as SVG: text for what comes in and out, filled shapes for operators and collectives, frames for modules."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from spmd_lab.show.graph_dot import LINE
from spmd_lab.show.graph_layout import lay_out
from spmd_lab.show.graph_shapes import corners, fill_of, has_frame, line_colour, radius
from spmd_lab.show.svg import document, element, path_of, text_element
from spmd_lab.show.symbols import symbol
from spmd_lab.show.theme import BACKWARD, FORWARD, GREY, SYMBOLS

if TYPE_CHECKING:
    from spmd_lab.show.graph_dot import Curve
    from spmd_lab.show.graph_layout import Box, Frame, Heading
    from spmd_lab.show.graph_records import GraphRecord

__all__ = ["graph_svg"]

_MARGIN, _FONT_SIZE, _ARROW = 4.0, 11.0, 7.0


def graph_svg(record: GraphRecord) -> str:
    """The picture of a graph."""
    placed = lay_out(record)
    parts = [
        *map(_frame, placed.frames),
        *map(_heading, placed.headings),
        *(_across(*ends) for ends in placed.far),
        *map(_curve, placed.curves),
        *map(_box, placed.boxes),
    ]
    if record.remark:
        parts.append(text_element(record.remark, 0, placed.height - 4, fill=GREY))
    moved = element("g", "".join(parts), transform=f"translate({_MARGIN:g},{_MARGIN:g})", font_size=_FONT_SIZE)
    return document(placed.width + 2 * _MARGIN, placed.height + 2 * _MARGIN, record.alt, [moved], "monospace")


def _frame(frame: Frame) -> str:
    """The box around a module, with its name."""
    outline = _framed(frame.x, frame.y, frame.width, frame.height)
    return outline + text_element(frame.title, frame.x + 8, frame.y + 14, fill=GREY, font_weight="bold")


def _framed(x: float, y: float, width: float, height: float) -> str:
    return _rectangle(x, y, width, height, 6, fill="none", stroke=GREY, stroke_opacity="0.5")


def _rectangle(x: float, y: float, width: float, height: float, corner: float, **look: str | float) -> str:
    return element("rect", "", x=x, y=y, width=width, height=height, rx=corner, **look)


def _heading(heading: Heading) -> str:
    fill = BACKWARD if heading.backward else FORWARD
    return text_element(heading.text, heading.x, heading.y, fill=fill, font_weight="bold")


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
    left, top, fill = box.x - box.width / 2, box.y - box.height / 2, fill_of(box.node)
    if has_frame(box.node):
        return _framed(left, top, box.width, box.height)
    if fill is None:
        return ""
    outline = corners(box.node, box.width, box.height)
    if outline is not None:
        return element("path", d=path_of([(box.x + x, box.y + y) for x, y in outline], closed=True), fill=fill)
    return _rectangle(left, top, box.width, box.height, radius(box.node, box.height), fill=fill)


def _label(box: Box) -> str:
    """The lines of a node; a collective has the symbol of its kind in front, a module its name in bold."""
    node = box.node
    top = box.y - len(node.lines) * LINE / 2 + LINE - 3.5
    middle = box.x + 6 if node.shape in SYMBOLS else box.x
    lines = "".join(
        text_element(
            line,
            middle,
            top + LINE * position,
            text_anchor="middle",
            fill=line_colour(node, position),
            **({"font_weight": "bold"} if node.shape == "module" and not position else {}),
        )
        for position, line in enumerate(node.lines)
    )
    if node.shape not in SYMBOLS:
        return lines
    return symbol(node.shape, box.x - box.width / 2 + 18, box.y, 8, "white") + lines
