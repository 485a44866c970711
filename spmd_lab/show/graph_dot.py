"""A picture, told to Graphviz, and what it answers.

Sizes follow from the number of characters and not from fonts, so that a picture is the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spmd_lab.show.theme import SYMBOLS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from spmd_lab.show.graph_records import ClusterRecord, GraphRecord, NodeRecord

__all__ = ["CHARACTER", "LINE", "Curve", "Half", "Point", "half_of", "keys_within", "node_size"]

CHARACTER, LINE = 6.7, 14.0
"""The width of a character and the height of a line, in points."""
_POINTS_PER_INCH = 72
_PADS = {"operand": 8.0, "output": 8.0} | dict.fromkeys(SYMBOLS, 48.0)
_PAD = 22.0

Point = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """An edge: a start, then three points for each piece of the curve, then the tip of the arrow."""

    points: tuple[Point, ...]
    tip: Point


@dataclass(frozen=True)
class Half:
    """What Graphviz has placed: the forward, the backward, or all of a picture without halves.

    Nodes have centres, modules an upper left corner and a size; y runs downward.
    """

    width: float
    height: float
    centres: dict[str, Point]
    curves: dict[tuple[str, str], Curve]
    frames: dict[str, tuple[float, float, float, float]]


def half_of(record: GraphRecord, nodes: Sequence[NodeRecord]) -> Half:
    """Let Graphviz place some nodes of a picture, the modules around them, and the edges between them."""
    import pygraphviz

    returns = record.halves and any(node.backward for node in nodes)
    direction = ("BT" if returns else "TB") if record.downward else ("RL" if returns else "LR")
    names = {node.key: f"n{position}" for position, node in enumerate(nodes)}
    sizes = {node.key: node_size(node) for node in nodes}
    edges = [
        (edge.tail, edge.head) for edge in record.edges if not edge.far and edge.tail in names and edge.head in names
    ]
    boxed: list[str] = []
    told = [
        f"digraph {{ rankdir={direction}; nodesep=0.16; ranksep=0.3; labelloc={'b' if direction == 'BT' else 't'};",
        'labeljust=l; node [shape=box, fixedsize=true, label=""]; edge [arrowsize=0.65];',
        *(
            f"{names[key]} [width={width / _POINTS_PER_INCH:.4f}, height={height / _POINTS_PER_INCH:.4f}];"
            for key, (width, height) in sizes.items()
        ),
        *_told_clusters(record.clusters, names, boxed),
        *(f"{names[tail]} -> {names[head]};" for tail, head in edges),
        "}",
    ]
    drawn = pygraphviz.AGraph(string="\n".join(told))
    drawn.layout("dot")
    _, _, width, height = _numbers(drawn.graph_attr["bb"])
    placed = {key: _numbers(drawn.get_node(name).attr["pos"]) for key, name in names.items()}
    bounds = {each.name: _numbers(each.graph_attr["bb"]) for each in _subgraphs(drawn)}
    return Half(
        width,
        height,
        {key: (x, height - y) for key, (x, y) in placed.items()},
        {(tail, head): _curve(drawn.get_edge(names[tail], names[head]), height) for tail, head in edges},
        {
            path: (left, height - top, right - left, top - bottom)
            for number, path in enumerate(boxed)
            for left, bottom, right, top in [bounds[f"cluster_{number}"]]
        },
    )


def _told_clusters(clusters: Iterable[ClusterRecord], names: dict[str, str], boxed: list[str]) -> Iterator[str]:
    """The modules that have nodes in a half. A title is given as a room of its size: no font is looked up."""
    for cluster in clusters:
        if not any(key in names for key in keys_within(cluster)):
            continue
        room = f'FIXEDSIZE="TRUE" WIDTH="{len(cluster.title) * CHARACTER:.0f}" HEIGHT="12"'
        yield f"subgraph cluster_{len(boxed)} {{ margin=8;"
        yield f"label=<<TABLE {_NO_BORDER}><TR><TD {room}></TD></TR></TABLE>>;"
        boxed.append(cluster.key)
        yield from (f"{names[key]};" for key in cluster.keys if key in names)
        yield from _told_clusters(cluster.children, names, boxed)
        yield "}"


_NO_BORDER = 'BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="0"'


def keys_within(cluster: ClusterRecord) -> Iterator[str]:
    """The nodes of a module, and of the modules in it."""
    yield from cluster.keys
    for child in cluster.children:
        yield from keys_within(child)


def _subgraphs(graph: Any) -> Iterator[Any]:
    for inner in graph.subgraphs():
        yield inner
        yield from _subgraphs(inner)


def node_size(node: NodeRecord) -> tuple[float, float]:
    """The width and height of a node."""
    widest = max(len(line) for line in node.lines)
    return widest * CHARACTER + _PADS.get(node.shape, _PAD), len(node.lines) * LINE + 8


def _curve(placed: Any, height: float) -> Curve:
    """Graphviz writes ``e,x,y x0,y0 x1,y1 ...``: the tip of the arrow, then the curve."""
    tip, *points = (
        (x, height - y) for x, y in (_numbers(pair.removeprefix("e,")) for pair in placed.attr["pos"].split())
    )
    return Curve(tuple(points), tip)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number) for number in text.split(","))
