"""Parts of a picture of a graph: around a node, collectives alone, the first of too many nodes."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from spmd_lab.errors import ArgumentError, nearest
from spmd_lab.show.graph_records import EdgeRecord, GraphRecord, NodeRecord
from spmd_lab.show.theme import SYMBOLS
from spmd_lab.show.units import count_text, counted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

__all__ = ["among", "around", "collectives_alone", "cut"]


def around(record: GraphRecord, name: str, hops: int) -> GraphRecord:
    """A node and those that are at most ``hops`` edges away from it, in either direction.

    Raises
    ------
    ArgumentError
        If there is no such node.
    """
    keys = {node.key for node in record.nodes}
    if name not in keys:
        raise ArgumentError(f"the picture has no node {name!r}", argument=f"around={name!r}", hint=nearest(name, keys))
    beside = _neighbours(record.edges, both=True)
    reached = {name: 0}
    waiting = deque([name])
    while waiting:
        key = waiting.popleft()
        for other in beside.get(key, ()):
            if other not in reached and reached[key] < hops:
                reached[other] = reached[key] + 1
                waiting.append(other)
    kept = among(record, reached)
    return replace(kept, alt=f"{record.alt}: {name} and what is within {counted(hops, 'edge')} of it")


def collectives_alone(record: GraphRecord) -> GraphRecord:
    """The collectives; an edge says that what one gives reaches the other, and not by way of a third alone."""
    loud = [node for node in record.nodes if node.shape in SYMBOLS]
    edges = tuple(
        EdgeRecord(loud[tail].key, loud[head].key, far=loud[head].backward and not loud[tail].backward)
        for tail, head in _nearest_reached(record, [node.key for node in loud])
    )
    told = f"{record.alt}: its collectives alone" if loud else f"{record.alt}: it has no collectives"
    return replace(record, alt=told, downward=False, nodes=tuple(loud), edges=edges)


def _nearest_reached(record: GraphRecord, wanted: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Pairs of positions among the wanted nodes, which stand in the order of the graph: sets of them are bits."""
    bits = {key: 1 << position for position, key in enumerate(wanted)}
    after = _neighbours(record.edges)
    reached: dict[str, int] = {}
    for node in reversed(record.nodes):
        reached[node.key] = 0
        for key in after.get(node.key, ()):
            reached[node.key] |= reached.get(key, 0) | bits.get(key, 0)
    for tail, key in enumerate(wanted):
        left = reached[key]
        while left:
            nearest_bit = left & -left
            head = nearest_bit.bit_length() - 1
            yield tail, head
            left &= ~(nearest_bit | reached[wanted[head]])


def cut(record: GraphRecord, limit: int) -> GraphRecord:
    """The first nodes of a picture that still has too many; the others are counted."""
    if len(record.nodes) <= limit:
        return record
    kept = {node.key for node in record.nodes[:limit]}
    hidden = len(record.nodes) - limit
    told = NodeRecord("hidden", "output", (f"{count_text(hidden)} more are hidden",))
    first = among(record, kept)
    return replace(first, alt=f"{record.alt}; {counted(hidden, 'node')} hidden", nodes=(*first.nodes, told))


def among(record: GraphRecord, keys: Collection[str]) -> GraphRecord:
    """The part of a picture that these nodes are."""
    nodes = tuple(node for node in record.nodes if node.key in keys)
    edges = tuple(edge for edge in record.edges if edge.tail in keys and edge.head in keys)
    return replace(record, nodes=nodes, edges=edges)


def _neighbours(edges: Iterable[EdgeRecord], both: bool = False) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for edge in edges:
        found.setdefault(edge.tail, []).append(edge.head)
        if both:
            found.setdefault(edge.head, []).append(edge.tail)
    return found
