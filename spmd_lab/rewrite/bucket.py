"""`bucket`: small collectives that do not wait for one another travel together."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed.tensor import Partial, Replicate

from spmd_lab.collectives import WAIT, axis_of
from spmd_lab.explain import flat_collective
from spmd_lab.rewrite.added import forget_redistributions, redistribution_of
from spmd_lab.rewrite.gathers import AT_ONCE, due_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx
    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.expand import Collective, Expansion
    from spmd_lab.mesh import Mesh

__all__ = ["bucket"]

_aten, _c10d = torch.ops.aten, torch.ops._c10d_functional
_ALL_REDUCE, _ALL_GATHER = _c10d.all_reduce.default, _c10d.all_gather_into_tensor.default
_REDUCE_SCATTER = _c10d.reduce_scatter_tensor.default
_JOIN = (_ALL_REDUCE, _ALL_GATHER, _REDUCE_SCATTER)

_SMALL, _FULL = 1 << 20, 4 << 20
"""Bytes: what is larger travels alone, as a copy would cost more than it saves; and what a bucket holds."""


class _Member(NamedTuple):
    """A collective that can travel with others: its node, the one that waits for it, and its record."""

    node: fx.Node
    wait: fx.Node
    record: Collective
    due: int | None = None

    @property
    def kind(self) -> tuple[object, ...]:
        """What is the same of all that travel together: what is asked for and when, how they lie on other axes."""
        states = tuple(_state(each) for each in self.record.have.placements)
        phase = self.node.meta.get("phase")
        return self.node.target, self.node.args[1:], self.record.have.dtype, phase, self.due, states

    def piece(self, rank: int) -> tuple[int, ...]:
        """The shape of what is smaller: of what a rank sends into a gather, of what it receives else."""
        smaller = self.record.have if self.node.target is _ALL_GATHER else self.record.need
        return smaller.local_shape(rank)


def _state(placement: Placement) -> object:
    return str(placement.reduce_op) if isinstance(placement, Partial) else isinstance(placement, Replicate)


def bucket(graph_module: fx.GraphModule, expansion: Expansion, rank: int) -> None:
    """Join small collectives into few.

    Those of one axis, operation, dtype and phase, whose values lie alike on the other axes, are put one behind the
    other in one tensor, sent, and taken apart. A bucket leaves with its last member, before anything reads the first
    one; of gathers, only those of parameters that are due together have one. What joins is decided by the largest
    shards, and so is the same on every rank; uneven shards are gathered and scattered by themselves.

    Examples
    --------
    >>> import torch, spmd_lab as sl
    >>> expansion = sl.spmd_expand(torch.nn.Linear(4, 2), torch.ones(8, 4), mesh=sl.Mesh(dp=4), batch="dp")
    >>> program = expansion.program.rewrite("bucket")
    >>> len(expansion.program.collectives), len(program.collectives)
    (2, 1)
    """
    graph = graph_module.graph
    buckets = _buckets(graph, due_at(expansion.steps))
    nodes = [member.node for members in buckets for member in members]
    forget_redistributions(graph, {redistribution_of(each) for each in nodes})
    for members in buckets:
        _join(graph, members, expansion.mesh, rank)


def _buckets(graph: fx.Graph, due: Mapping[str, int]) -> list[list[_Member]]:
    """Collectives of one kind that may leave together: none of them is read before the last one is there."""
    found: list[list[_Member]] = []
    filling: dict[object, list[_Member]] = {}
    bucket_of: dict[fx.Node, list[_Member]] = {}
    for node in graph.nodes:
        read = [bucket_of[each] for each in node.all_input_nodes if each in bucket_of]
        if node.op != "output":
            filling = {kind: members for kind, members in filling.items() if not any(members is each for each in read)}
        member = _member(node, due)
        if member is None:
            continue
        members = filling.get(member.kind)
        full = AT_ONCE if node.target is _REDUCE_SCATTER else _FULL
        if members is None or sum(each.record.payload_bytes for each in (*members, member)) > full:
            members = filling[member.kind] = []
            found.append(members)
        members.append(member)
        bucket_of[member.wait] = members
    return [members for members in found if len(members) > 1]


def _member(node: fx.Node, due: Mapping[str, int]) -> _Member | None:
    """A small collective that belongs to a redistribution, and that one node waits for."""
    record: Collective | None = node.meta.get("spmd_collective")
    if node.target not in _JOIN or record is None or "spmd_operand" not in node.meta or len(node.users) != 1:
        return None
    member = _Member(node, next(iter(node.users)), record, due.get(record.step))
    padded = node.target is not _ALL_REDUCE and axis_of(node) in record.have.uneven_axes | record.need.uneven_axes
    untimely = node.target is _ALL_GATHER and member.due is None
    return None if padded or untimely or record.payload_bytes > _SMALL else member


def _join(graph: fx.Graph, members: list[_Member], mesh: Mesh, rank: int) -> None:
    """Put one collective in the place of several; what is added belongs to the step of the last one."""
    last, place_of_wait = members[-1].node, _place_of_wait(members)
    size, pieces = mesh.axis_size(axis_of(last)), [member.piece(rank) for member in members]
    rows = size if last.target is _REDUCE_SCATTER else 1
    received_rows = size if last.target is _ALL_GATHER else 1
    place = {key: value for key, value in last.meta.items() if key in ("spmd_step", "source", "phase")}

    def call(target: Any, *args: Any) -> fx.Node:
        node = graph.call_function(target, args)
        node.meta = {**place, "spmd_added": True}
        return node

    with graph.inserting_before(last):
        flat = [call(_aten.reshape.default, each.node.args[0], [rows, -1]) for each in members]
        joined = call(last.target, call(_aten.cat.default, flat, 1), *last.args[1:])
    dtype = members[0].record.have.dtype
    elements = sum(member.record.payload_bytes // dtype.itemsize for member in members)
    joined.meta["spmd_collective"] = flat_collective(joined, mesh, elements, dtype)
    with graph.inserting_before(place_of_wait):
        received = call(_aten.reshape.default, call(WAIT, joined), [received_rows, -1])
        parts = call(_aten.split_with_sizes.default, received, [math.prod(piece) for piece in pieces], 1)
        for index, (member, piece) in enumerate(zip(members, pieces, strict=True)):
            shape = [received_rows * piece[0], *piece[1:]] if piece else []
            whole = call(_aten.reshape.default, call(operator.getitem, parts, index), shape)
            whole.meta = {**member.wait.meta, "spmd_added": True}
            member.wait.replace_all_uses_with(whole)
    for member in members:
        graph.erase_node(member.wait)
        graph.erase_node(member.node)


def _place_of_wait(members: list[_Member]) -> fx.Node:
    """Where the first of them is read; what was scattered is waited for no later than the last of them was."""
    first_reader = min(user for member in members for user in member.wait.users)
    scattered = members[0].node.target is _REDUCE_SCATTER
    return min(first_reader, max(member.wait for member in members)) if scattered else first_reader
