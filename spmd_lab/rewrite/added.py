"""Nodes that a pass has added: how they are called, and the step that each belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.torch_internals.operators import by_position, is_operator

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from torch import fx

__all__ = ["arguments_by_position", "forget_redistributions", "place_added", "redistribution_of"]

_PLACE = ("spmd_step", "spmd_operand", "source", "phase")


def arguments_by_position(graph: fx.Graph) -> None:
    """Let calls of operators give by position what a pass has given by name: that is how others read them."""
    for node in graph.nodes:
        if node.kwargs and is_operator(node.target):
            node.args, node.kwargs = by_position(node.target, node.args, node.kwargs)


def place_added(graph: fx.Graph) -> None:
    """Let nodes without a step belong where the proof should look for their mistakes.

    Nodes through which alone a value is read, and that stand right behind it, have changed that value: they belong to
    the step that makes it, and the last of them carries it. But what stands right before a redistribution is part of
    that, and any other node is part of the step that reads it. One that only the output reads is part of the step that
    it reads from, if that is one.
    """
    added = {node for node in graph.nodes if _is_operator(node) and "spmd_step" not in node.meta}
    for node in [node for node in graph.nodes if _is_operator(node) and "spmd_value" in node.meta]:
        _extend(node, added)
    order = {node: position for position, node in enumerate(graph.nodes)}
    for node in reversed(graph.nodes):
        if node in added:
            readers = sorted((user for user in node.users if "spmd_step" in user.meta), key=order.__getitem__)
            _belong(node, readers[:1])
    for node in graph.nodes:
        if node in added:
            _belong(node, node.all_input_nodes)
            node.meta["spmd_added"] = True


def redistribution_of(node: fx.Node) -> tuple[str, int] | None:
    """The step and the operand whose redistribution a node belongs to, if it does."""
    return (node.meta["spmd_step"], node.meta["spmd_operand"]) if "spmd_operand" in node.meta else None


def forget_redistributions(graph: fx.Graph, broken: Collection[tuple[str, int] | None]) -> None:
    """Let what is left of redistributions be nodes like those that a pass adds: they are no longer whole.

    Parameters
    ----------
    graph : torch.fx.Graph
        Of a program.
    broken : collection of (str, int)
        The step and the operand of each; None is none.
    """
    for node in graph.nodes:
        if "spmd_operand" in node.meta and redistribution_of(node) in broken:
            del node.meta["spmd_operand"]
            node.meta["spmd_added"] = True


def _is_operator(node: fx.Node) -> bool:
    return node.op not in ("placeholder", "output")


def _extend(value: fx.Node, added: set[fx.Node]) -> None:
    """Let a value be carried by the last of the added nodes through which alone it is read."""
    chain = [value]
    while len(chain[-1].users) == 1:
        (reader,) = chain[-1].users
        others = [each for each in reader.all_input_nodes if each is not chain[-1] and each.op != "get_attr"]
        if reader not in added or others:
            break
        chain.append(reader)
    last = chain[-1]
    if last is value or any(reader in added for reader in last.users):
        return
    behind, before = chain[1].prev is value, last.next in last.users and len(last.users) == 1
    if before if not behind else before and "spmd_operand" in last.next.meta:
        return
    for node in chain[1:]:
        _belong(node, [value])
    last.meta["spmd_value"] = value.meta.pop("spmd_value")


def _belong(node: fx.Node, neighbours: Iterable[fx.Node]) -> None:
    """Take the step of neighbours that belong to one, unless there is one already."""
    known = [each for each in neighbours if "spmd_step" in each.meta]
    if "spmd_step" not in node.meta and len({each.meta["spmd_step"] for each in known}) == 1:
        node.meta.update({key: known[0].meta[key] for key in _PLACE if key in known[0].meta})
