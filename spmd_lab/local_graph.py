"""Builds the graph that one rank runs, and notes on which mesh axes it depends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx

from spmd_lab.elements import chunk_bounds, chunk_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.fx.node import Argument

    from spmd_lab.collectives import CollectiveKind
    from spmd_lab.layout import Layout
    from spmd_lab.mesh import Mesh

__all__ = [
    "EmittedCollective",
    "LocalGraphBuilder",
    "own_part",
    "padded_size",
    "whatever_the_strides",
]


aten = torch.ops.aten
c10d = torch.ops._c10d_functional

_WHATEVER_THE_STRIDES: dict[Callable[..., Any], Callable[..., Any]] = {
    aten.view.default: aten.reshape.default,
    aten._unsafe_view.default: aten.reshape.default,  # noqa: SLF001 - the name of an operator
}


class EmittedCollective(NamedTuple):
    """A collective that a builder appended: what it is, and the operand whose redistribution it belongs to, if any."""

    kind: CollectiveKind
    axis: str
    reduce_op: str | None
    have: Layout
    need: Layout
    operand: int | None


class LocalGraphBuilder:
    """Builds the graph of one rank.

    Whatever differs between ranks must be asked of the builder (`index`, `local_shape`, `chunk_bounds`), which notes
    the axes concerned in `depends_on`: ranks that agree on those axes share one graph.

    Parameters
    ----------
    graph : torch.fx.Graph
        Where nodes are appended.
    mesh : Mesh
        The mesh.
    coordinate : tuple of int
        Where the rank stands on it.
    """

    def __init__(self, graph: fx.Graph, mesh: Mesh, coordinate: tuple[int, ...]) -> None:
        self.graph = graph
        self.mesh = mesh
        self.coordinate = coordinate
        self.depends_on: set[str] = set()
        self.constants: dict[str, torch.Tensor] = {}
        self.collectives: list[EmittedCollective] = []
        self.meta: dict[str, Any] = {}

    # --- what differs between ranks ---

    def index(self, axis: str) -> int:
        """This rank's index along an axis."""
        self.depends_on.add(axis)
        return self.coordinate[self.mesh.axis_index(axis)]

    def local_shape(self, layout: Layout) -> tuple[int, ...]:
        """The shape of this rank's shard."""
        self.depends_on |= layout.uneven_axes
        return layout.local_shape_at(self.coordinate)

    def chunk_bounds(self, length: int, axis: str) -> tuple[int, int]:
        """This rank's part of ``length`` elements that are divided over an axis."""
        return chunk_bounds(length, self.mesh.axis_size(axis), self.index(axis))

    # --- local operators ---

    def call(self, op: Callable[..., Any], *args: Argument, **kwargs: Argument) -> fx.Node:
        """Append a call of an operator; views become reshapes.

        A view that the strides of the whole tensor allow may be impossible on a shard: redistributions lay elements
        out anew.
        """
        op = whatever_the_strides(op)
        node = self.graph.create_node("call_function", op, args, kwargs, name=op.__name__.partition(".")[0])
        node.meta.update(self.meta)
        return node

    def constant(self, name: str, value: torch.Tensor) -> fx.Node:
        """Append a constant tensor; equal names must mean equal values."""
        self.constants[name] = value
        node = self.graph.create_node("get_attr", name)
        node.meta.update(self.meta)
        return node

    def pad(self, x: fx.Node, ndim: int, dim: int, missing: int) -> fx.Node:
        """Append zeros at the end of one dim; also where none are missing here but are elsewhere."""
        return self.call(aten.constant_pad_nd.default, x, [0] * (2 * (ndim - dim - 1)) + [0, missing], 0)

    def narrow(self, x: fx.Node, dim: int, start: int, stop: int) -> fx.Node:
        """Keep the elements from ``start`` to ``stop`` of one dim, contiguously."""
        return self.call(aten.contiguous.default, self.call(aten.slice.Tensor, x, dim, start, stop))

    # --- collectives; the group of a graph that is not yet bound is the name of its axis ---

    def all_reduce(self, x: fx.Node, axis: str, have: Layout, need: Layout) -> fx.Node:
        """Carry out the reduction that is pending on an axis; every rank gets the whole."""
        reduce_op = have.pending[axis]
        self._record("all_reduce", axis, reduce_op, have, need)
        return self._wait(c10d.all_reduce.default, x, reduce_op, axis)

    def all_gather(self, x: fx.Node, dim: int, axis: str, have: Layout, need: Layout) -> fx.Node:
        """Concatenate the equal pieces of all ranks of an axis along a dim."""
        self._record("all_gather", axis, None, have, need)
        size = self.mesh.axis_size(axis)
        gathered = self._wait(c10d.all_gather_into_tensor.default, self._contiguous(x), size, axis)
        return gathered if dim == 0 else self._move_blocks(gathered, size, 0, dim)

    def reduce_scatter(self, x: fx.Node, dim: int, axis: str, have: Layout, need: Layout) -> fx.Node:
        """Carry out the reduction that is pending on an axis; every rank gets its equal piece of a dim."""
        reduce_op = have.pending[axis]
        self._record("reduce_scatter", axis, reduce_op, have, need)
        size = self.mesh.axis_size(axis)
        blocks = self._contiguous(x) if dim == 0 else self._move_blocks(x, size, dim, 0)
        return self._wait(c10d.reduce_scatter_tensor.default, blocks, reduce_op, size, axis)

    def all_to_all(self, x: fx.Node, gather_dim: int, shard_dim: int, axis: str, have: Layout, need: Layout) -> fx.Node:
        """Divide one dim instead of another: gather the pieces of ``gather_dim``, keep those of ``shard_dim``."""
        self._record("all_to_all", axis, None, have, need)
        op = torch.ops._dtensor.shard_dim_alltoall.default
        return self._wait(op, self._contiguous(x), gather_dim, shard_dim, axis)

    def _record(self, kind: CollectiveKind, axis: str, reduce_op: str | None, have: Layout, need: Layout) -> None:
        self.collectives.append(EmittedCollective(kind, axis, reduce_op, have, need, self.meta.get("spmd_operand")))

    def _wait(self, op: Callable[..., Any], *args: Argument) -> fx.Node:
        return self.call(c10d.wait_tensor.default, self.call(op, *args))

    def _contiguous(self, x: fx.Node) -> fx.Node:
        return self.call(aten.contiguous.default, x)

    def _move_blocks(self, x: fx.Node, count: int, from_dim: int, to_dim: int) -> fx.Node:
        """Cut one dim into equal blocks and lay them along another."""
        return self.call(aten.cat.default, self.call(aten.chunk.default, x, count, from_dim), to_dim)


def own_part(builder: LocalGraphBuilder, whole: fx.Node, layout: Layout) -> fx.Node:
    """This rank's part of a tensor that it has whole."""
    for dim in range(len(layout.global_shape)):
        for split in layout.splits(dim):
            builder.index(split.axis)
        if layout.splits(dim):
            runs = layout.runs(dim, builder.coordinate) or ((0, 0),)
            parts = [builder.call(aten.slice.Tensor, whole, dim, start, stop) for start, stop in runs]
            whole = parts[0] if len(parts) == 1 else builder.call(aten.cat.default, parts, dim)
    return whole


def whatever_the_strides(op: Callable[..., Any]) -> Callable[..., Any]:
    """The operator to run where elements may lie otherwise in memory than they did when the program was traced.

    Examples
    --------
    >>> whatever_the_strides(aten.view.default)
    <OpOverload(op='aten.reshape', overload='default')>
    """
    return _WHATEVER_THE_STRIDES.get(op, op)


def padded_size(layout: Layout, builder: LocalGraphBuilder, dim: int, axis: str) -> tuple[int, int]:
    """The length of a dim on this rank, and the equal piece that each rank of ``axis`` holds once it is padded."""
    length = builder.local_shape(layout)[dim]
    return length, chunk_size(length, builder.mesh.axis_size(axis))
