"""`overlap`: collectives start as soon as their data is there, and are waited for where their result is first read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.binding import WAIT, is_collective

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import fx

    from spmd_lab.expand import Expansion

__all__ = ["overlap"]


def overlap(graph_module: fx.GraphModule, expansion: Expansion, rank: int) -> None:
    """Put what is sent as early, and what waits for it as late as the values allow.

    The operators keep their order; between them, collectives and what prepares their data move up, and what only turns
    their results into what is read moves down. Collectives keep an order that depends on the operators alone, so that
    it is the same on every rank.

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
    order = _scheduled(list(graph.nodes), early, late)
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


def _scheduled(nodes: list[fx.Node], early: set[fx.Node], late: set[fx.Node]) -> list[fx.Node]:
    """The nodes in their new order."""
    position = {node: index for index, node in enumerate(nodes)}
    missing = {node: len(node.all_input_nodes) for node in nodes}
    placed: dict[fx.Node, None] = {}

    def put(node: fx.Node) -> None:
        if node in placed:
            return
        for read in node.all_input_nodes:
            put(read)  # what was waiting for somebody to read it, and what was waiting for that
        placed[node] = None
        for user in sorted(node.users, key=position.__getitem__):
            missing[user] -= 1
            if user in early and not missing[user]:
                put(user)

    for node in nodes:
        if node not in early and node not in late:
            put(node)
    for node in nodes:  # what nothing reads
        put(node)
    output = nodes[-1]
    del placed[output]
    return [*placed, output]
