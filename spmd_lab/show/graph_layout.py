"""Where the nodes and edges of a picture stand: Graphviz decides, over sizes that are given to it.

Sizes follow from the number of characters and not from fonts, so that a picture is the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spmd_lab.show.theme import SYMBOLS

if TYPE_CHECKING:
    from typing import Any

    from spmd_lab.show.part_records import GraphRecord, NodeRecord

__all__ = ["CHARACTER", "LINE", "Box", "Curve", "GraphLayout", "lay_out"]

CHARACTER, LINE = 6.7, 14.0
"""The width of a character and the height of a line, in points."""
_POINTS_PER_INCH = 72
_PADS = {"operand": 8.0, "output": 8.0} | dict.fromkeys(SYMBOLS, 44.0)
_PAD = 22.0


@dataclass(frozen=True)
class Box:
    """A node: its centre and its size; y runs downward."""

    node: NodeRecord
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Curve:
    """An edge: a start, then three points for each piece of the curve, then the tip of the arrow."""

    points: tuple[tuple[float, float], ...]
    tip: tuple[float, float]


@dataclass(frozen=True)
class GraphLayout:
    """A laid out picture; ``far`` are the two ends of edges that run across it."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    curves: tuple[Curve, ...]
    far: tuple[tuple[Box, Box], ...]


def lay_out(record: GraphRecord) -> GraphLayout:
    """Let Graphviz place the nodes and draw the edges."""
    import networkx

    graph = networkx.DiGraph()
    graph.graph["graph"] = {"rankdir": "TB" if record.downward else "LR", "nodesep": "0.15", "ranksep": "0.35"}
    graph.graph["node"] = {"shape": "box", "fixedsize": "true", "label": ""}  # no label: no font is looked up
    keys = {node.key: f"n{position}" for position, node in enumerate(record.nodes)}
    for node in record.nodes:
        width, height = _size(node)
        graph.add_node(keys[node.key], width=width / _POINTS_PER_INCH, height=height / _POINTS_PER_INCH)
    near = [(keys[edge.tail], keys[edge.head]) for edge in record.edges if not edge.far]
    graph.add_edges_from(near)
    drawn = networkx.nx_agraph.to_agraph(graph)
    drawn.layout("dot")
    _, _, width, height = _numbers(drawn.graph_attr["bb"])
    boxes = {node.key: _box(node, drawn.get_node(keys[node.key]), height) for node in record.nodes}
    curves = tuple(_curve(drawn.get_edge(*edge), height) for edge in near)
    far = tuple((boxes[edge.tail], boxes[edge.head]) for edge in record.edges if edge.far)
    return GraphLayout(width, height, tuple(boxes.values()), curves, far)


def _size(node: NodeRecord) -> tuple[float, float]:
    widest = max(len(line) for line in node.lines)
    return widest * CHARACTER + _PADS.get(node.shape, _PAD), len(node.lines) * LINE + 8


def _box(node: NodeRecord, placed: Any, height: float) -> Box:
    x, y = _numbers(placed.attr["pos"])
    return Box(node, x, height - y, *_size(node))


def _curve(placed: Any, height: float) -> Curve:
    """Graphviz writes ``e,x,y x0,y0 x1,y1 ...``: the tip of the arrow, then the curve."""
    tip, *points = (
        (x, height - y) for x, y in (_numbers(pair.removeprefix("e,")) for pair in placed.attr["pos"].split())
    )
    return Curve(tuple(points), tip)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number) for number in text.split(","))
