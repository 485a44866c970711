"""`share`: what is computed, or communicated, twice from the same values is done once."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from spmd_lab.rewrite.added import forget_redistributions
from spmd_lab.torch_internals.mutation import is_mutating
from spmd_lab.torch_internals.operators import is_operator, is_random

if TYPE_CHECKING:
    from collections.abc import Hashable

    from spmd_lab.expand import Expansion

__all__ = ["share"]

_c10d = torch.ops._c10d_functional
_WAIT = _c10d.wait_tensor.default
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
    gathered parameter is not.

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
    broken: set[tuple[str, int]] = set()
    for node in list(graph_module.graph.nodes):
        key = _key_of(node, numbers)
        equals = known.setdefault(key, [])
        numbers[node] = numbers[equals[0]] if equals else len(numbers)
        same = next((each for each in equals if _may_replace(each, node)), None)
        if same is None:
            equals.append(node)
        else:
            node.replace_all_uses_with(same)
            broken |= _erase_unread(graph_module.graph, node)
    forget_redistributions(graph_module.graph, broken)


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
    made = first.args[0] if first.target is _WAIT else first
    return isinstance(made, fx.Node) and made.target in _NO_LARGER


def _erase_unread(graph: fx.Graph, node: fx.Node) -> set[tuple[str, int]]:
    """Erase a node that nothing reads any more, and what only it has read; say of which redistributions they were."""
    waiting, broken = {node: None}, set[tuple[str, int]]()
    while waiting:
        each, _ = waiting.popitem()
        if not each.users and each.op == "call_function":
            waiting.update(dict.fromkeys(each.all_input_nodes))
            if "spmd_operand" in each.meta:
                broken.add((each.meta["spmd_step"], each.meta["spmd_operand"]))
            graph.erase_node(each)
    return broken
