"""The modules of a picture: a box around each, one for those that repeat, closed where nodes are too many."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING

from spmd_lab.show.graph_records import ClusterRecord, EdgeRecord, GraphRecord, NodeRecord
from spmd_lab.show.module_tree import Module, module_names, module_tree, without_containers
from spmd_lab.show.theme import SYMBOLS
from spmd_lab.show.units import count_text, counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["VISIBLE", "Folding", "fitting", "folded", "folding"]

VISIBLE = 300
"""So many nodes are drawn at most."""


@dataclass(frozen=True)
class Closed:
    """A module of which a picture shows neither the nodes nor the modules in it."""

    title: str
    keys: frozenset[str]


@dataclass
class Folding:
    """Which node of a picture stands for each, and the modules around them.

    ``repeats`` says of a node in which modules that are drawn once it is, and in the how manieth of each.
    """

    stands_for: dict[str, str]
    repeats: dict[str, dict[str, int]] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)
    closed: dict[str, Closed] = field(default_factory=dict)
    clusters: tuple[ClusterRecord, ...] = ()

    def visible(self, key: str) -> str:
        """The node that stands for a node."""
        while self.stands_for.get(key, key) != key:
            key = self.stands_for[key]
        return key

    def count(self) -> int:
        """How many nodes are seen."""
        return len({self.visible(key) for key in self.stands_for})


def folding(record: GraphRecord, depth: int | None = None, once: bool = True) -> Folding:
    """How the modules of a picture are drawn.

    Parameters
    ----------
    record : GraphRecord
        The whole graph.
    depth : int, optional
        Modules that so many boxes would lie around are closed, themselves included.
    once : bool
        Whether modules of a list that repeat are drawn once.
    """
    root = module_tree(record.nodes, lambda node: node.module)
    writer = _Folder(record, depth, once)
    _, clusters = writer.within(root, "", 1)
    writer.done.clusters = clusters
    return writer.done


def fitting(record: GraphRecord, depth: int | None = None, once: bool = True, limit: int = VISIBLE) -> Folding:
    """The same, with as much folded as it takes to see at most ``limit`` nodes, if that can be."""
    found = folding(record, depth, once)
    if found.count() > limit and not once:
        found = folding(record, depth)
    deepest = depth or max((node.module.count(".") + 1 for node in record.nodes if node.module), default=0)
    while found.count() > limit and deepest:
        found = folding(record, deepest)
        deepest -= 1
    return found


class _Folder:
    """Goes through the modules of a graph, from the outermost inward."""

    def __init__(self, record: GraphRecord, depth: int | None, once: bool) -> None:
        self.depth, self.once = depth, once
        self.done = Folding({node.key: node.key for node in record.nodes})
        self.before: dict[str, list[str]] = {node.key: [] for node in record.nodes}
        for edge in record.edges:
            self.before[edge.head].append(edge.tail)

    def within(self, module: Module[NodeRecord], path: str, level: int) -> tuple[list[str], tuple[ClusterRecord, ...]]:
        """What stands in a module itself, closed modules included, and those that have boxes of their own."""
        keys = [node.key for node in module.items]
        clusters = []
        for run in self._runs(without_containers(module)):
            title = module_names(tuple(each.path for each in run), path)
            title += f" × {count_text(len(run))}" if len(run) > 1 else ""
            self._merge(run)
            if level == self.depth:
                keys += self._close(run[0], title)
            else:
                own, inner = self.within(run[0], run[0].path, level + 1)
                clusters.append(ClusterRecord(run[0].path, _short(title), tuple(own), inner))
        self.done.homes |= dict.fromkeys(keys, path)
        return keys, tuple(clusters)

    def _runs(self, modules: Sequence[Module[NodeRecord]]) -> list[list[Module[NodeRecord]]]:
        """Modules of a list that follow one another and run the same program stand together."""
        if not self.once:
            return [[module] for module in modules]
        alike = [list(run) for _, run in groupby(modules, key=lambda module: _unnumbered(module.path))]
        return [
            list(run)
            for named in alike
            for _, run in (groupby(named, key=self._signature) if len(named) > 1 else [(None, named)])
        ]

    def _signature(self, module: Module[NodeRecord]) -> tuple[object, ...]:
        """Equal for modules that run the same program, their nodes linked in the same way."""
        nodes = list(module.everything())
        places = {node.key: place for place, node in enumerate(nodes)}
        return tuple(
            (
                node.module.removeprefix(module.path),
                node.shape,
                node.axis,
                node.backward,
                _relative(node.lines, module.path),
                tuple(places[key] for key in self.before[node.key] if key in places),
                any(key not in places for key in self.before[node.key]),
            )
            for node in nodes
        )

    def _merge(self, run: Sequence[Module[NodeRecord]]) -> None:
        if len(run) == 1:
            return
        for number, module in enumerate(run):
            for node, first in zip(module.everything(), run[0].everything(), strict=True):
                self.done.stands_for[node.key] = first.key
                self.done.repeats.setdefault(node.key, {})[run[0].path] = number

    def _close(self, module: Module[NodeRecord], title: str) -> list[str]:
        """The nodes that stand for a whole module: one for its forward, and one for its backward."""
        found: dict[str, list[str]] = {}
        for node in module.everything():
            key = f"module:{module.path}{':backward' if node.backward else ''}"
            self.done.stands_for[node.key] = key
            found.setdefault(key, []).append(node.key)
        self.done.closed |= {key: Closed(title, frozenset(inner)) for key, inner in found.items()}
        return list(found)


def folded(record: GraphRecord, how: Folding) -> GraphRecord:
    """The picture of a graph, or of one that is part of it, by its modules."""
    members: dict[str, list[NodeRecord]] = {}
    for node in record.nodes:
        members.setdefault(how.visible(node.key), []).append(node)
    nodes = tuple(_visible(key, found, how) for key, found in members.items())
    edges: dict[tuple[str, str], EdgeRecord] = {}
    for edge in record.edges:
        seen = _seen(edge, how)
        if seen.tail != seen.head and (edge.far or not _joins_repeats(edge, how.repeats)):
            edges.setdefault((seen.tail, seen.head), seen)
    hidden = len(record.nodes) - sum(key not in how.closed for key in members)
    told = f"{record.alt}, {counted(hidden, 'node')} of it hidden" if hidden else record.alt
    return replace(
        record,
        alt=told,
        nodes=nodes,
        edges=tuple(edges.values()),
        clusters=_with_nodes(how.clusters, frozenset(members)),
        remark="; ".join(_remarks(hidden, how, any(edge.far for edge in edges.values()))),
    )


def _remarks(hidden: int, how: Folding, has_far: bool) -> Iterator[str]:
    """How many nodes are not drawn, and why; what dashes are."""
    if hidden:
        once = ["modules that repeat are drawn once"] if how.repeats else []
        closed = ["modules are closed" if not once else "some are closed"] if how.closed else []
        yield f"{counted(hidden, 'node')} hidden: {', '.join(once + closed)}"
    if has_far:
        yield "dashed: what the backward reads of the forward"


def _seen(edge: EdgeRecord, how: Folding) -> EdgeRecord:
    tail, head = how.visible(edge.tail), how.visible(edge.head)
    through = dict.fromkeys(how.visible(key) for key in edge.through)
    return EdgeRecord(tail, head, edge.far, tuple(key for key in through if key not in (tail, head)))


def _joins_repeats(edge: EdgeRecord, repeats: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether an edge leads from a module that is drawn once into the next of its kind."""
    tail, head = repeats.get(edge.tail, {}), repeats.get(edge.head, {})
    return any(tail[path] != head[path] for path in tail.keys() & head.keys())


def _visible(key: str, found: Sequence[NodeRecord], how: Folding) -> NodeRecord:
    if key in how.closed:
        return _module(key, how.closed[key], [node for node in found if node.key in how.closed[key].keys])
    lines = _relative(found[0].lines, how.homes.get(key, ""))
    return replace(found[0], key=key, lines=tuple(map(_short, lines)))


def _module(key: str, closed: Closed, found: Sequence[NodeRecord]) -> NodeRecord:
    """A closed module: how many operators it has, and which collectives."""
    loud = Counter((node.shape, node.lines[0], node.axis) for node in found if node.shape in SYMBOLS)
    operators = sum(node.shape in ("op", "local") for node in found)
    calls = [
        f"{SYMBOLS[shape]} {count_text(count)} {called}" if count > 1 else f"{SYMBOLS[shape]} {called}"
        for (shape, called, _), count in loud.items()
    ]
    backward = any(node.backward for node in found)
    heading = (_short(closed.title), counted(operators, "operator")) if operators or not calls else (closed.title,)
    axes = (*(-1 for _ in heading), *(axis for _, _, axis in loud))
    return NodeRecord(key, "module", (*heading, *calls), backward=backward, line_axes=axes)


def _unnumbered(path: str) -> str:
    """The path of a module, without the numbers that it has in lists."""
    return ".".join("#" if name.isdecimal() else name for name in path.split("."))


def _relative(lines: tuple[str, ...], path: str) -> tuple[str, ...]:
    """Lines within a module, whose path they need not repeat."""
    return tuple(line.replace(f"{path}.", "") for line in lines) if path else lines


def _short(line: str) -> str:
    """A line without its middle where it is very long."""
    half = _LONGEST // 2
    return line if len(line) <= _LONGEST else f"{line[:half]}…{line[-half:]}"


_LONGEST = 72


def _with_nodes(clusters: Iterable[ClusterRecord], keys: frozenset[str]) -> tuple[ClusterRecord, ...]:
    """Modules with those of their nodes that a picture has; none that has no such node."""
    kept = (
        replace(each, keys=tuple(key for key in each.keys if key in keys), children=_with_nodes(each.children, keys))
        for each in clusters
    )
    return tuple(each for each in kept if each.keys or each.children)
