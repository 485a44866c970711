"""Edges that run past many rows of a picture: some are drawn lightly, where all of them would take Graphviz minutes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spmd_lab.show.graph_records import EdgeRecord, GraphRecord

__all__ = ["as_light_as", "lightened", "spans"]

_MANY, _FEW = 1200, 600


def lightened(record: GraphRecord) -> GraphRecord:
    """A picture whose longest edges are far where all edges together run past very many rows."""
    lengths = spans(record)
    left = sum(lengths.values())
    if left <= _MANY:
        return record
    light = set()
    for edge in sorted(lengths, key=lambda edge: -lengths[edge]):
        if left <= _FEW:
            break
        light.add(edge)
        left -= lengths[edge]
    edges = tuple(replace(edge, far=True) if edge in light else edge for edge in record.edges)
    return replace(record, edges=edges)


def as_light_as(record: GraphRecord, frame: GraphRecord) -> GraphRecord:
    """A picture whose edges are far where those of its frame are, and which says so."""
    far = {(edge.tail, edge.head) for edge in frame.edges if edge.far}
    edges = tuple(replace(edge, far=edge.far or (edge.tail, edge.head) in far) for edge in record.edges)
    if edges == record.edges:
        return record
    told = [record.remark] if record.remark else []
    return replace(record, edges=edges, remark="; ".join([*told, "dashed too: what is read many rows away"]))


def spans(record: GraphRecord) -> Mapping[EdgeRecord, int]:
    """How many rows each edge that is not far runs past, where every node stands right before what reads it."""
    near = [edge for edge in record.edges if not edge.far]
    readers: dict[str, list[str]] = {}
    unread: dict[str, int] = dict.fromkeys((node.key for node in record.nodes), 0)
    sources: dict[str, list[str]] = {}
    for edge in near:
        readers.setdefault(edge.tail, []).append(edge.head)
        sources.setdefault(edge.head, []).append(edge.tail)
        unread[edge.tail] += 1
    rows: dict[str, int] = {}
    waiting = [key for key, count in unread.items() if not count]
    while waiting:
        key = waiting.pop()
        rows[key] = 1 + max((rows[reader] for reader in readers.get(key, ())), default=-1)
        for source in sources.get(key, ()):
            unread[source] -= 1
            waiting += [source] if not unread[source] else []
    return {edge: max(0, rows.get(edge.tail, 0) - rows.get(edge.head, 0) - 1) for edge in near}
