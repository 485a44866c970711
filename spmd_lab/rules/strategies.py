"""Rules of our own, one mesh axis at a time: the ways in which an operator can run divided over one axis.

Each axis takes the way that costs least to reach from the layouts at hand; ties go to the way named first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.errors import LayoutError
from spmd_lab.rules.casts import passes_cast
from spmd_lab.rules.order import in_the_order_at_hand
from spmd_lab.rules.plan import Plan, TensorArg
from spmd_lab.torch_internals.placements import StridedShard
from spmd_lab.torch_internals.sharding import TensorSlot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx
    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.rules.plan import OpCall

__all__ = ["Way", "aligned", "choose_ways", "everything_whole", "pick", "run_operator", "sharded_alike", "take_ways"]


class Way(NamedTuple):
    """One way to run an operator over one mesh axis: a placement per tensor, and one per output."""

    needs: tuple[Placement, ...]
    outputs: tuple[Placement, ...]


def everything_whole(call: OpCall) -> Way:
    """The way that always works: every rank computes everything."""
    return Way((Replicate(),) * len(call.tensors), (Replicate(),) * len(call.results))


def choose_ways(
    call: OpCall,
    ways: Sequence[Way],
    emit: Callable[[LocalGraphBuilder, tuple[fx.Node, ...]], Any] | None = None,
    *,
    any_order: bool = False,
) -> Plan:
    """Plan a call by the cheapest way on each axis.

    Parameters
    ----------
    call : OpCall
        The call.
    ways : sequence of Way
        The ways to choose from, besides `everything_whole`.
    emit : callable, optional
        The local program; by default the operator itself, on the shards.
    any_order : bool
        Whether shards may be any elements of a dim, as long as they are the same of every tensor: a dim that is divided
        by several axes then keeps the order in which they divide it.
    """
    ways = [way for way in ways if _survives_casts(call, way)]
    try:
        return take_ways(call, _cheapest(call, ways, any_order), emit)
    except LayoutError:  # one axis would leave a sum, and another a largest value: their order would matter
        return take_ways(call, _cheapest(call, [way for way in ways if _adds_up(way)], any_order), emit)


def _cheapest(call: OpCall, ways: Sequence[Way], any_order: bool) -> list[Way]:
    """The way of each axis."""
    whole = everything_whole(call)
    chosen = [
        min([*ways, whole], key=lambda way: _cost(call, way, position, any_order=any_order))
        for position in range(call.mesh.ndim)
    ]
    return in_the_order_at_hand(call, chosen) if any_order else chosen


def _survives_casts(call: OpCall, way: Way) -> bool:
    """Whether what is pending may have the dtypes that pending outputs have."""
    given = [
        (placement.reduce_op, tensor.layout.dtype)
        for tensor, placement in zip(call.tensors, way.needs, strict=True)
        if isinstance(placement, Partial)
    ]
    made = [
        result.dtype
        for result, placement in zip(call.results, way.outputs, strict=True)
        if result is not None and isinstance(placement, Partial)
    ]
    return all(passes_cast(kind, before, after) for kind, before in given for after in made)


def _adds_up(way: Way) -> bool:
    """Whether nothing but sums and averages is pending in it."""
    return all(each.reduce_op in ("sum", "avg") for each in (*way.needs, *way.outputs) if isinstance(each, Partial))


def take_ways(
    call: OpCall,
    chosen: Sequence[Way],
    emit: Callable[[LocalGraphBuilder, tuple[fx.Node, ...]], Any] | None = None,
) -> Plan:
    """Plan a call by one way per axis, whatever it costs to reach them."""
    needs = tuple(tensor.layout.with_placements([way.needs[tensor.index] for way in chosen]) for tensor in call.tensors)
    outputs = call.output_layouts([[way.outputs[index] for way in chosen] for index in range(len(call.results))])
    return Plan(needs, outputs, emit or run_operator(call))


def _cost(call: OpCall, way: Way, position: int, *, any_order: bool) -> float:
    """The bytes that one axis has to move, roughly: what is chosen has to be right, not exact."""
    return sum(
        tensor.layout.nbytes(tensor.layout.global_shape)
        * _effort(
            _without_order(tensor.layout.placements[position]) if any_order else tensor.layout.placements[position],
            need,
        )
        for tensor, need in zip(call.tensors, way.needs, strict=True)
    )


def _without_order(placement: Placement) -> Placement:
    return Shard(placement.dim) if isinstance(placement, StridedShard) else placement


def _effort(have: Placement, need: Placement) -> float:
    """All-reduce 2, all-gather 1, all-to-all less, a local cut next to nothing.

    A reduce-scatter moves half of what an all-reduce does, but the next reader who wants the whole gathers what it left
    divided, as all readers of a residual stream do: it counts as both. What is to be pending is made whole first,
    unless it is pending so already.
    """
    if have == need:
        return 0.0
    if isinstance(have, Partial):
        return {Replicate: 2.0, Partial: 2.5}.get(type(need), 2.01)
    if isinstance(have, Replicate):
        return 1e-3
    return {Replicate: 1.0, Partial: 1.5}.get(type(need), 0.5)


def run_operator(call: OpCall) -> Callable[[LocalGraphBuilder, tuple[fx.Node, ...]], fx.Node]:
    """The local program that is the operator itself, with its arguments as they are."""

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> fx.Node:
        args, kwargs = pick(call.args, nodes), pick(call.kwargs, nodes)
        return builder.call(call.op, *args, **kwargs)

    return emit


def pick(value: Any, nodes: tuple[fx.Node, ...]) -> Any:
    """Put the node of each tensor in its place among arguments."""
    if isinstance(value, (TensorArg, TensorSlot)):
        return nodes[value.index]
    if isinstance(value, dict):
        return {key: pick(each, nodes) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(pick(each, nodes) for each in value)
    return value


def sharded_alike(dim: int, which: Sequence[bool], outputs: Sequence[bool]) -> Way:
    """The way that divides the same dim of several tensors and outputs, and leaves the others whole."""
    place = {True: Shard(dim), False: Replicate()}
    return Way(tuple(place[each] for each in which), tuple(place[each] for each in outputs))


def aligned(tensor: TensorArg, dim: int, shape: Sequence[int]) -> Placement:
    """Divide the dim of a tensor that lies under ``dim`` of the broadcast shape, unless it is stretched to it."""
    own = dim - (len(shape) - len(tensor.layout.global_shape))
    return Shard(own) if own >= 0 and tensor.layout.global_shape[own] == shape[dim] else Replicate()
