"""`overlap`: collectives start as soon as their data is there, and are waited for where their result is first read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spmd_lab.collectives import WAIT, is_collective
from spmd_lab.rewrite.gathers import AT_ONCE, due_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import fx

    from spmd_lab.expand import Expansion, Step

__all__ = ["overlap"]


def overlap(graph_module: fx.GraphModule, expansion: Expansion, rank: int) -> None:
    """Put what is sent as early, and what waits for it as late as the values allow.

    The operators keep their order; between them, collectives and what prepares their data move up, and what only turns
    their results into what is read moves down. Collectives keep an order that depends on the operators alone, so that
    it is the same on every rank.

    What would only be held longer is not sent at once. Parameters are gathered in groups of 1 MiB, or one larger one,
    sent when the first of the group before is read; of gradients on their way to where they rest, as many as the
    largest of them, or 1 MiB, are waited for later.

    Examples
    --------
    >>> import torch, spmd_lab as sl
    >>> expansion = sl.spmd_expand(torch.nn.Linear(4, 2), torch.ones(8, 4), mesh=sl.Mesh(dp=4), batch="dp")
    >>> program = expansion.program.rewrite("overlap")
    >>> targets = [node.target for node in program.graph_module.graph.nodes]
    >>> targets.index(torch.ops._c10d_functional.wait_tensor.default) > targets.index(torch.ops.aten.mm.default)
    True
    """
    graph = graph_module.graph
    early = _preparations(graph.nodes)
    late = {node for node in graph.nodes if node.target is WAIT}
    order = _Schedule(list(graph.nodes), early, late, expansion).order
    place = order[0]
    for node in order[1:]:
        place.append(node)
        place = node


def _preparations(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The collectives, and the nodes of redistributions that nothing but a collective reads."""
    found: set[fx.Node] = set()
    for node in reversed(list(nodes)):
        feeds = "spmd_operand" in node.meta and node.users and all(user in found for user in node.users)
        if node.op == "call_function" and node.target is not WAIT and (is_collective(node) or feeds):
            found.add(node)
    return found


class _Schedule:
    """The nodes in their new order."""

    def __init__(self, nodes: list[fx.Node], early: set[fx.Node], late: set[fx.Node], expansion: Expansion) -> None:
        self._positions = {node: index for index, node in enumerate(nodes)}
        self._missing = {node: len(node.all_input_nodes) for node in nodes}
        self._placed: dict[fx.Node, None] = {}
        self._on_their_way = _OnTheirWay(nodes)
        steps = {step.name: index for index, step in enumerate(expansion.steps)}
        gathers = _gathers(nodes, early, expansion.steps)
        self._early = early - {node for name in gathers for node in gathers[name]}
        waiting = [(due, gathers[name]) for name, due in due_at(expansion.steps).items() if name in gathers]
        for node in nodes:
            if node in early or node in late:
                continue
            while waiting and waiting[0][0] <= steps.get(node.meta.get("spmd_step", ""), -1):
                for each in waiting.pop(0)[1]:
                    self._put(each)
            self._put(node)
        for node in nodes:  # what nothing reads
            self._put(node)
        output = nodes[-1]
        del self._placed[output]
        self.order = [*self._placed, output]

    def _put(self, node: fx.Node) -> None:
        if node in self._placed:
            return
        for read in node.all_input_nodes:
            self._put(read)  # what was waiting for somebody to read it, and what was waiting for that
        self._placed[node] = None
        for user in sorted(node.users, key=self._positions.__getitem__):
            self._missing[user] -= 1
            if user in self._early and not self._missing[user]:
                self._put(user)
        for wait in self._on_their_way.after(node):
            self._put(wait)


def _gathers(nodes: Iterable[fx.Node], early: set[fx.Node], steps: Iterable[Step]) -> dict[str, list[fx.Node]]:
    """What begins to gather a parameter, by the name of the step that does."""
    names = {step.name for step in steps if step.op == "gather"}
    found: dict[str, list[fx.Node]] = {}
    for node in nodes:
        name = node.meta.get("spmd_step", "")
        if node in early and name in names:
            found.setdefault(name, []).append(node)
    return found


class _OnTheirWay:
    """The gradients that were sent to where they rest, and that nothing waits for yet."""

    def __init__(self, nodes: Iterable[fx.Node]) -> None:
        self._waits = {node: next(iter(node.users)) for node in nodes if _scatters_output(node)}
        self._most = max([AT_ONCE, *map(_payload, self._waits)])
        self._sent: list[fx.Node] = []

    def after(self, node: fx.Node) -> Iterable[fx.Node]:
        """The nodes that have to wait once a node has run: for what was sent first, where it is too much by now."""
        if node in self._waits:
            self._sent.append(node)
        while sum(map(_payload, self._sent)) > self._most:
            yield self._waits[self._sent.pop(0)]


def _scatters_output(node: fx.Node) -> bool:
    record = node.meta.get("spmd_collective")
    scatters = node.target is torch.ops._c10d_functional.reduce_scatter_tensor.default and len(node.users) == 1
    return scatters and record is not None and str(node.meta.get("spmd_step", "")).startswith("resolve:")


def _payload(node: fx.Node) -> int:
    return int(node.meta["spmd_collective"].payload_bytes)
