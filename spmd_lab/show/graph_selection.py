"""Parts of a picture of a graph: around a node, collectives alone, modules instead of their nodes."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING

from spmd_lab.errors import ArgumentError, nearest
from spmd_lab.show.part_records import EdgeRecord, GraphRecord, NodeRecord
from spmd_lab.show.theme import SYMBOLS
from spmd_lab.show.units import count_text, counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["VISIBLE", "around", "bounded", "collectives_alone", "folded"]

VISIBLE = 300
"""So many nodes are drawn at most."""


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
    kept = _kept(record, lambda node: node.key in reached)
    return replace(kept, alt=f"{record.alt}: {name} and what is within {counted(hops, 'edge')} of it")


def collectives_alone(record: GraphRecord) -> GraphRecord:
    """The collectives; an edge says that what one gives reaches the next without another between them."""
    loud = {node.key for node in record.nodes if node.shape in SYMBOLS}
    after = _neighbours(record.edges)
    edges = [EdgeRecord(key, other) for key in loud for other in _next_among(key, loud, after)]
    order = {node.key: position for position, node in enumerate(record.nodes)}
    edges.sort(key=lambda edge: (order[edge.tail], order[edge.head]))
    nodes = tuple(node for node in record.nodes if node.key in loud)
    return replace(record, alt=f"{record.alt}: its collectives alone", nodes=nodes, edges=tuple(edges))


def _next_among(start: str, wanted: set[str], after: dict[str, list[str]]) -> set[str]:
    found: set[str] = set()
    seen = {start}
    waiting = [start]
    while waiting:
        new = set(after.get(waiting.pop(), ())) - seen
        seen |= new
        found |= new & wanted
        waiting.extend(new - wanted)
    return found


def folded(record: GraphRecord, depth: int) -> GraphRecord:
    """Modules at a depth instead of their nodes; edges are those of the forward.

    What comes in and out, and what belongs to no module, stands together.
    """
    inner = [node for node in record.nodes if node.shape not in ("operand", "output")]
    names = {node.key: _GROUP + ".".join(node.module.split(".")[:depth]) for node in inner}
    groups: dict[str, list[NodeRecord]] = {}
    for node in inner:
        groups.setdefault(names[node.key], []).append(node)
    backward = {node.key for node in inner if node.shape == "backward op"}
    edges = [
        EdgeRecord(names[edge.tail], names[edge.head])
        for edge in record.edges
        if edge.tail in names and edge.head in names and not {edge.tail, edge.head} & backward
        if names[edge.tail] != names[edge.head] and not edge.far
    ]
    nodes = tuple(_module(name, members) for name, members in groups.items())
    hidden = counted(len(record.nodes), "node")
    alt = f"{record.alt}: {hidden} in {counted(len(nodes), 'module')}"
    return replace(record, alt=alt, nodes=nodes, edges=tuple(dict.fromkeys(edges)))


_GROUP = "module:"


def _module(name: str, members: Sequence[NodeRecord]) -> NodeRecord:
    path = name.removeprefix(_GROUP)
    backward = sum(node.shape == "backward op" for node in members)
    loud = Counter(node.shape for node in members if node.shape in SYMBOLS)
    forward = len(members) - backward - loud.total()
    told = [counted(forward, "operator"), *([f"{count_text(backward)} backward"] if backward else [])]
    calls = [f"{SYMBOLS[kind]} {counted(count, kind, kind)}" for kind, count in loud.items()]
    return NodeRecord(name, "module", (path or "itself", ", ".join(told), *calls), module=path)


def bounded(record: GraphRecord, limit: int = VISIBLE) -> GraphRecord:
    """The picture with at most ``limit`` nodes: by modules, as deep as that allows; the rest is counted."""
    if len(record.nodes) <= limit:
        return record
    deepest = max((node.module.count(".") + 1 for node in record.nodes if node.module), default=0)
    for depth in range(deepest, 0, -1):
        shown = folded(record, depth)
        if len(shown.nodes) <= limit:
            return shown
    kept = {node.key for node in record.nodes[:limit]}
    hidden = len(record.nodes) - limit
    told = NodeRecord("hidden", "output", (f"{count_text(hidden)} more are hidden",))
    cut = _kept(record, lambda node: node.key in kept)
    return replace(cut, alt=f"{record.alt}; {counted(hidden, 'node')} hidden", nodes=(*cut.nodes, told))


def _kept(record: GraphRecord, wanted: Callable[[NodeRecord], bool]) -> GraphRecord:
    nodes = tuple(filter(wanted, record.nodes))
    keys = {node.key for node in nodes}
    return replace(
        record, nodes=nodes, edges=tuple(edge for edge in record.edges if edge.tail in keys and edge.head in keys)
    )


def _neighbours(edges: Iterable[EdgeRecord], both: bool = False) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for edge in edges:
        found.setdefault(edge.tail, []).append(edge.head)
        if both:
            found.setdefault(edge.head, []).append(edge.tail)
    return found
