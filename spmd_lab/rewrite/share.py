"""`share`: what is computed, or communicated, twice from the same values is done once."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from spmd_lab.collectives import WAIT, is_collective
from spmd_lab.rewrite.added import forget_redistributions, redistribution_of
from spmd_lab.torch_internals.mutation import is_mutating
from spmd_lab.torch_internals.operators import is_operator, is_random

if TYPE_CHECKING:
    from collections.abc import Hashable

    from spmd_lab.expand import Expansion

__all__ = ["share"]

_c10d = torch.ops._c10d_functional
_NO_LARGER = (
    _c10d.all_reduce.default,
    _c10d.reduce_scatter_tensor.default,
    torch.ops._dtensor.shard_dim_alltoall.default,
)
"""The collectives whose result is no larger than what they are given."""


def share(graph_module: fx.GraphModule, expansion: Expansion, rank: int) -> None:
    """Let equal nodes be one.

    Operators are expanded one by one: a value that several of them read is redistributed for each anew. Two nodes are
    equal if they call the same operator with equal arguments; draws of random numbers and writes never are.

    A backward node does not become a forward one, as that would have to be kept until then, unless it is the result of
    a collective that is no larger than what would have been kept in its place: the sum of a residual stream is, a
    gathered parameter is not; and what is gathered anew, in whatever way, is not kept.

    What a step sends in its own local program, and not to redistribute an operand, it goes on to send: it is announced.

    Examples
    --------
    >>> import torch, spmd_lab as sl
    >>> def twice(x, w):
    ...     return (x @ w).relu() * (x @ w).exp()
    >>> expansion = sl.spmd_expand(
    ...     twice, torch.ones(4, 8), torch.ones(8, 4), mesh=sl.Mesh(tp=2), inputs={"x": "b d/tp", "w": "d/tp h"}
    ... )
    >>> program = expansion.program.rewrite("share")
    >>> len(expansion.program.collectives), len(program.collectives)
    (2, 1)
    """
    numbers: dict[fx.Node, int] = {}
    known: dict[Hashable, list[fx.Node]] = {}
    replaced: list[fx.Node] = []
    sending = {node.meta.get("spmd_step") for node in graph_module.graph.nodes if _is_own_collective(node)}
    for node in graph_module.graph.nodes:
        key = _key_of(node, numbers)
        equals = known.setdefault(key, [])
        numbers[node] = numbers[equals[0]] if equals else len(numbers)
        is_own = "spmd_operand" not in node.meta and node.meta.get("spmd_step") in sending
        same = None if is_own else next((each for each in equals if _may_replace(each, node)), None)
        if same is None:
            equals.append(node)
        else:
            node.replace_all_uses_with(same)
            replaced.append(node)
    broken = _erase_unread(graph_module.graph, replaced)
    forget_redistributions(graph_module.graph, broken | _read_halfway(graph_module.graph))


def _key_of(node: fx.Node, numbers: dict[fx.Node, int]) -> Hashable:
    """The same for nodes that must hold the same."""
    target = node.target
    if node.op == "get_attr":
        return node.op, str(target)
    pure = target is operator.getitem or (is_operator(target) and not is_random(target) and not is_mutating(target))
    if node.op != "call_function" or not pure:
        return node.name
    return target, _told(node.args, numbers), _told(node.kwargs, numbers)


def _told(value: Any, numbers: dict[fx.Node, int]) -> Hashable:
    if isinstance(value, fx.Node):
        return "value", numbers[value]
    if isinstance(value, (list, tuple)):
        return tuple(_told(each, numbers) for each in value)
    if isinstance(value, dict):
        return tuple((name, _told(each, numbers)) for name, each in sorted(value.items()))
    return type(value), repr(value)  # True is not 1, and 0.0 not -0.0


def _may_replace(first: fx.Node, second: fx.Node) -> bool:
    if not any(key in second.meta for key in ("spmd_value", "spmd_operand", "spmd_added")):
        return False  # what a step computes on the way to its value is its own
    if first.meta.get("phase") == second.meta.get("phase"):
        return True
    if str(second.meta.get("spmd_step", "")).startswith("regather:"):
        return False
    made = first.args[0] if first.target is WAIT else first
    return isinstance(made, fx.Node) and made.target in _NO_LARGER


def _erase_unread(graph: fx.Graph, replaced: list[fx.Node]) -> set[tuple[str, int] | None]:
    """Erase nodes that nothing reads any more, and what only they have read; say of which redistributions they were."""
    waiting, broken = dict.fromkeys(replaced), set[tuple[str, int] | None]()
    while waiting:
        node, _ = waiting.popitem()
        if not node.users and node.op == "call_function":
            waiting.update(dict.fromkeys(node.all_input_nodes))
            broken.add(redistribution_of(node))
            graph.erase_node(node)
    return broken


def _is_own_collective(node: fx.Node) -> bool:
    return is_collective(node) and "spmd_operand" not in node.meta and "spmd_added" not in node.meta


def _read_halfway(graph: fx.Graph) -> set[tuple[str, int] | None]:
    """The redistributions of which something is read that is on its way."""
    return {
        own
        for node in graph.nodes
        if (own := redistribution_of(node)) and len({redistribution_of(user) == own for user in node.users}) == 2
    }
