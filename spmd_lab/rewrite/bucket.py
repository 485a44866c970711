"""`bucket`: small reductions that do not wait for one another travel together."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed.tensor import Partial, Replicate

from spmd_lab.binding import WAIT
from spmd_lab.explain import flat_collective
from spmd_lab.rewrite.added import forget_redistributions, redistribution_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx
    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.expand import Expansion
    from spmd_lab.layout import Layout
    from spmd_lab.mesh import Mesh

__all__ = ["bucket"]

_aten, _c10d = torch.ops.aten, torch.ops._c10d_functional
_ALL_REDUCE = _c10d.all_reduce.default

_SMALL, _FULL = 1 << 20, 4 << 20
"""Bytes: what is larger travels alone, as a copy would cost more than it saves; and what a bucket holds."""


class _Member(NamedTuple):
    """A reduction that can travel with others: its node, the one that waits for it, and what it reduces."""

    node: fx.Node
    wait: fx.Node
    layout: Layout

    @property
    def largest_bytes(self) -> int:
        """Of the largest shard: the same on every rank."""
        return self.layout.nbytes(self.layout.largest_local_shape)

    @property
    def kind(self) -> tuple[object, ...]:
        """What is the same of all that travel together: how they are reduced, and how they lie on other axes."""
        states = tuple(_state(each) for each in self.layout.placements)
        return self.node.args[1], self.node.args[2], self.layout.dtype, self.node.meta.get("phase"), states


def _state(placement: Placement) -> object:
    return str(placement.reduce_op) if isinstance(placement, Partial) else isinstance(placement, Replicate)


def bucket(graph_module: fx.GraphModule, expansion: Expansion, rank: int) -> None:
    """Join small all_reduces into few.

    Those of one axis, operation, dtype and phase, whose values lie alike on the other axes, are put one behind the
    other in one tensor, reduced, and taken apart. A bucket leaves with its last member, before anything reads the first
    one. What joins is decided by the largest shards, and so is the same on every rank.

    Examples
    --------
    >>> import torch, spmd_lab as sl
    >>> expansion = sl.spmd_expand(torch.nn.Linear(4, 2), torch.ones(8, 4), mesh=sl.Mesh(dp=4), batch="dp")
    >>> program = expansion.program.rewrite("bucket")
    >>> len(expansion.program.collectives), len(program.collectives)
    (2, 1)
    """
    graph = graph_module.graph
    buckets = _buckets(graph)
    nodes = [member.node for members in buckets for member in members]
    forget_redistributions(graph, {redistribution_of(each) for each in nodes})
    for members in buckets:
        _join(graph, members, expansion.mesh, rank)


def _buckets(graph: fx.Graph) -> list[list[_Member]]:
    """Reductions of one kind that may leave together: none of them is read before the last one is there."""
    found: list[list[_Member]] = []
    filling: dict[object, list[_Member]] = {}
    bucket_of: dict[fx.Node, list[_Member]] = {}
    for node in graph.nodes:
        read = [bucket_of[each] for each in node.all_input_nodes if each in bucket_of]
        if node.op != "output":
            filling = {kind: members for kind, members in filling.items() if not any(members is each for each in read)}
        member = _member(node)
        if member is None:
            continue
        members = filling.get(member.kind)
        if members is None or sum(each.largest_bytes for each in members) + member.largest_bytes > _FULL:
            members = filling[member.kind] = []
            found.append(members)
        members.append(member)
        bucket_of[member.wait] = members
    return [members for members in found if len(members) > 1]


def _member(node: fx.Node) -> _Member | None:
    """A small all_reduce that belongs to a redistribution, and that one node waits for."""
    record = node.meta.get("spmd_collective")
    if node.target is not _ALL_REDUCE or record is None or "spmd_operand" not in node.meta or len(node.users) != 1:
        return None
    member = _Member(node, next(iter(node.users)), record.have)
    return member if member.largest_bytes <= _SMALL else None


def _join(graph: fx.Graph, members: list[_Member], mesh: Mesh, rank: int) -> None:
    """Put one collective in the place of several; what is added belongs to the step of the last one."""
    last, first_reader = members[-1].node, _first_reader(graph, members)
    shapes = [member.layout.local_shape(rank) for member in members]
    place = {key: value for key, value in last.meta.items() if key in ("spmd_step", "source", "phase")}

    def call(target: Callable[..., Any], *args: Any) -> fx.Node:
        node = graph.call_function(target, args)
        node.meta = {**place, "spmd_added": True}
        return node

    with graph.inserting_before(last):
        joined = call(_aten.cat.default, [call(_aten.reshape.default, each.node.args[0], [-1]) for each in members])
        reduced = call(_ALL_REDUCE, joined, *last.args[1:])
    elements = sum(math.prod(member.layout.largest_local_shape) for member in members)
    reduced.meta["spmd_collective"] = flat_collective(reduced, mesh, elements, members[0].layout.dtype)
    with graph.inserting_before(first_reader):
        waited = call(WAIT, reduced)
        parts = call(_aten.split_with_sizes.default, waited, [math.prod(shape) for shape in shapes])
        for index, (member, shape) in enumerate(zip(members, shapes, strict=True)):
            whole = call(_aten.reshape.default, call(operator.getitem, parts, index), list(shape))
            whole.meta = {**member.wait.meta, "spmd_added": True}
            member.wait.replace_all_uses_with(whole)
    for member in members:
        graph.erase_node(member.wait)
        graph.erase_node(member.node)


def _first_reader(graph: fx.Graph, members: list[_Member]) -> fx.Node:
    readers = {user for member in members for user in member.wait.users}
    return min(readers)
