"""Where the nodes, edges and modules of a picture stand.

Graphviz places each half by itself. The forward runs downward, and the backward upward on its right: what a module does
in both is at about the same height.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from spmd_lab.show.graph_dot import CHARACTER, Curve, half_of, keys_within, node_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from spmd_lab.show.graph_dot import Half, Point
    from spmd_lab.show.graph_records import ClusterRecord, EdgeRecord, GraphRecord, NodeRecord

__all__ = ["Box", "Frame", "GraphLayout", "Heading", "lay_out"]

_GAP, _HEAD, _FOOT = 36.0, 22.0, 20.0


@dataclass(frozen=True)
class Box:
    """A node: its centre and its size; y runs downward."""

    node: NodeRecord
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Frame:
    """A module: its title, its upper left corner and its size."""

    title: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Heading:
    """What stands above a half of the picture."""

    text: str
    x: float
    y: float
    backward: bool


@dataclass(frozen=True)
class GraphLayout:
    """A laid out picture; ``far`` are the two ends of edges that run across it."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    curves: tuple[Curve, ...]
    far: tuple[tuple[Box, Box], ...]
    frames: tuple[Frame, ...]
    headings: tuple[Heading, ...]


def lay_out(record: GraphRecord) -> GraphLayout:
    """Let Graphviz place the nodes, the modules around them, and the edges."""
    frame = record.frame or record
    halves = [half_of(frame, nodes) for nodes in _nodes_of_halves(frame)]
    head = _HEAD if frame.halves and any(node.backward for node in frame.nodes) else 0.0
    corners, width, height = _corners(halves, frame.downward, head)
    sizes = {node.key: node_size(node) for node in frame.nodes}
    boxes = {
        node.key: Box(node, *_moved(half.centres[node.key], corner), *sizes[node.key])
        for node in record.nodes
        for half, corner in zip(halves, corners, strict=True)
        if node.key in half.centres
    }
    known = {
        ends: Curve(tuple(_moved(point, corner) for point in curve.points), _moved(curve.tip, corner))
        for half, corner in zip(halves, corners, strict=True)
        for ends, curve in half.curves.items()
    }
    near, far = [], []
    for edge in record.edges:
        pieces = [known.get(pair) for pair in _pairs(edge)]
        whole = [piece for piece in pieces if piece is not None]
        if len(whole) == len(pieces):
            near.append(_joined(whole))
        else:
            far.append((boxes[edge.tail], boxes[edge.head]))
    return GraphLayout(
        width=max(width, len(record.remark) * CHARACTER),
        height=height + (_FOOT if record.remark else 0.0),
        boxes=tuple(boxes.values()),
        curves=tuple(near),
        far=tuple(far),
        frames=tuple(
            found
            for half, corner in zip(halves, corners, strict=True)
            for found in _frames(record.clusters, half, corner)
        ),
        headings=_headings(frame, corners) if head else (),
    )


def _nodes_of_halves(record: GraphRecord) -> list[list[NodeRecord]]:
    forward = [node for node in record.nodes if not (record.halves and node.backward)]
    backward = [node for node in record.nodes if record.halves and node.backward]
    return [half for half in (forward, backward) if half] or [[]]


def _corners(halves: Sequence[Half], downward: bool, head: float) -> tuple[list[Point], float, float]:
    """Where the halves start, and the size of both: side by side on one ground, or one above the other."""
    if downward:
        height = head + max(half.height for half in halves)
        lefts = accumulate((half.width + _GAP for half in halves), initial=0.0)
        corners = [(left, height - half.height) for left, half in zip(lefts, halves, strict=False)]
        return corners, corners[-1][0] + halves[-1].width, height
    tops = list(accumulate((half.height + _GAP for half in halves), initial=head))
    return [(0.0, top) for top in tops[:-1]], max(half.width for half in halves), tops[-1] - _GAP


def _headings(record: GraphRecord, corners: Sequence[Point]) -> tuple[Heading, ...]:
    halves = [half[0].backward for half in _nodes_of_halves(record)]
    forward, back = "↓↑" if record.downward else "→←"
    return tuple(
        Heading(f"backward {back}" if backward else f"forward {forward}", x, y - 8, backward)
        for backward, (x, y) in zip(halves, corners, strict=True)
    )


def _moved(point: Point, corner: Point) -> Point:
    return point[0] + corner[0], point[1] + corner[1]


def _pairs(edge: EdgeRecord) -> list[tuple[str, str]]:
    way = (edge.tail, *edge.through, edge.head)
    return list(pairwise(way))


def _joined(curves: Sequence[Curve]) -> Curve:
    """Curves one after the other, with straight pieces between."""
    points = curves[0].points
    for before, after in pairwise(curves):
        start = after.points[0]
        points += (points[-1], before.tip, before.tip, before.tip, start, start, *after.points[1:])
    return Curve(points, curves[-1].tip)


def _frames(clusters: Iterable[ClusterRecord], half: Half, corner: Point) -> Iterator[Frame]:
    """The boxes of modules that have nodes in a half, the outer ones first."""
    for cluster in clusters:
        if any(key in half.centres for key in keys_within(cluster)):
            left, top, width, height = half.frames[cluster.key]
            yield Frame(cluster.title, left + corner[0], top + corner[1], width, height)
        yield from _frames(cluster.children, half, corner)
