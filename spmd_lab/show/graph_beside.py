"""Two graphs that have nodes in common, drawn so that each of these has one place in both pictures."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from spmd_lab.show.graph_records import EdgeRecord, GraphRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["beside", "frame_of"]


def beside(record: GraphRecord, other: GraphRecord, same: Mapping[str, str]) -> GraphRecord:
    """A graph with the names that its nodes have in another; its edges run through what the other has between.

    Parameters
    ----------
    record : GraphRecord
        The graph.
    other : GraphRecord
        One with more nodes.
    same : mapping of str to str
        From nodes of the first to nodes of the other.
    """
    own = {node.key: same.get(node.key, f"only:{node.key}") for node in record.nodes}
    after: dict[str, list[str]] = {}
    for edge in other.edges:
        after.setdefault(edge.tail, []).append(edge.head)
    own_keys = frozenset(own.values())
    edges = tuple(
        replace(
            edge,
            tail=own[edge.tail],
            head=own[edge.head],
            through=() if edge.far else _between(own[edge.tail], own[edge.head], after, own_keys),
        )
        for edge in record.edges
    )
    return replace(record, nodes=tuple(replace(node, key=own[node.key]) for node in record.nodes), edges=edges)


def _between(tail: str, head: str, after: Mapping[str, Iterable[str]], known: frozenset[str]) -> tuple[str, ...]:
    """The nodes on the shortest way that has none of the ``known`` ones."""
    came: dict[str, str] = {}
    waiting = deque([tail])
    while waiting and head not in came:
        key = waiting.popleft()
        for found in after.get(key, ()):
            if found not in came and (found == head or found not in known):
                came[found] = key
                waiting.append(found)
    if head not in came:
        return ()
    way: list[str] = []
    while came[head] != tail:
        head = came[head]
        way.append(head)
    return tuple(reversed(way))


def frame_of(record: GraphRecord, other: GraphRecord) -> GraphRecord:
    """What has room for both: the nodes of both, each as wide as it is in either, and the edges of both."""
    lines = {node.key: node.lines for node in record.nodes}
    nodes = [
        replace(
            node,
            lines=tuple(max(pair, key=len) for pair in zip(node.lines, lines[node.key], strict=False))
            if node.key in lines
            else node.lines,
        )
        for node in other.nodes
    ]
    keys = {node.key for node in nodes}
    linked = {(edge.tail, edge.head) for edge in other.edges}
    edges = [edge for edge in record.edges if not edge.through and (edge.tail, edge.head) not in linked]
    return replace(
        other,
        nodes=(*nodes, *(node for node in record.nodes if node.key not in keys)),
        edges=(*other.edges, *(EdgeRecord(edge.tail, edge.head, edge.far) for edge in edges)),
    )
