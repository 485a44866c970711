"""Bags of embeddings: divided by the columns of the table, by its rows, or by the flat list of what is looked up.

Where that list is divided, a rank has a part of every bag, often none: bags come out as pending sums.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.layout import Layout
from spmd_lab.rules.plan import TensorArg
from spmd_lab.rules.strategies import Way, choose_ways, pick
from spmd_lab.torch_internals.operators import position_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx
    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.rules.plan import OpCall, Plan

__all__ = ["RULES"]

aten = torch.ops.aten
SUM, MEAN, MAX = 0, 1, 2
WHOLE, PENDING, ROWS, COLUMNS = Replicate(), Partial(), Shard(0), Shard(1)


def plan_embedding_bag(call: OpCall) -> Plan:
    """Plan ``_embedding_bag(weight, indices, offsets, …) -> bags, offset2bag, bag_size, max_indices``."""
    mode = call.argument("mode")
    ways = [
        Way(_placed(call, weight=COLUMNS), (COLUMNS, WHOLE, WHOLE, COLUMNS if mode == MAX else WHOLE)),
    ]
    if mode == MAX:
        return choose_ways(call, ways)
    counted = WHOLE if mode == MEAN else PENDING  # a mean adds up the sizes of bags at once, to divide by them
    listed = ROWS if _is_per_index(call, call.results[1]) else WHOLE
    ways += [
        Way(_placed(call, indices=ROWS, per_sample_weights=ROWS), (PENDING, listed, counted, counted)),
        Way(_placed(call, weight=ROWS), (PENDING, WHOLE, WHOLE, WHOLE)),
    ]
    plan = choose_ways(call, ways)
    return replace(plan, emit=_look_up(call, plan))


def plan_embedding_bag_backward(call: OpCall) -> Plan:
    """Plan ``_embedding_bag_backward(grad, indices, offsets, offset2bag, bag_size, …)``, the gradient of the table."""
    if call.argument("sparse"):
        return choose_ways(call, [])
    columns = {"grad": COLUMNS} | ({"maximum_indices": COLUMNS} if call.argument("mode") == MAX else {})
    ways = [Way(_placed(call, **columns), (COLUMNS,)), Way(_placed(call, grad=PENDING), (PENDING,))]
    if call.argument("mode") == MAX or call.argument("scale_grad_by_freq"):
        return choose_ways(call, ways)
    per_index = [name for name in ("indices", "offset2bag", "per_sample_weights") if _is_listed(call, name)]
    ways.append(Way(_placed(call, **dict.fromkeys(per_index, ROWS)), (PENDING,)))
    plan = choose_ways(call, ways)
    indices = plan.needs[call.argument("indices").index]

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> fx.Node:
        args = list(pick(call.args, nodes))
        place = position_of(call.op, "offsets")
        assert place is not None
        args[place] = _local_offsets(builder, indices, args[place])
        return builder.call(call.op, *args)

    return replace(plan, emit=emit)


def _placed(call: OpCall, **placements: Placement) -> tuple[Placement, ...]:
    """One placement per tensor of the call, by the names of arguments; the others are whole."""
    by_index = {
        tensor.index: placement
        for name, placement in placements.items()
        if isinstance(tensor := call.argument(name), TensorArg)
    }
    return tuple(by_index.get(tensor.index, WHOLE) for tensor in call.tensors)


def _is_per_index(call: OpCall, value: torch.Tensor | None) -> bool:
    """Whether a tensor has an element for each index; torch leaves ``offset2bag`` empty where it can do without."""
    return value is not None and tuple(value.shape) == call.argument("indices").layout.global_shape


def _is_listed(call: OpCall, name: str) -> bool:
    tensor = call.argument(name)
    return isinstance(tensor, TensorArg) and tensor.layout.global_shape == call.argument("indices").layout.global_shape


def _look_up(call: OpCall, plan: Plan) -> Callable[[LocalGraphBuilder, tuple[fx.Node, ...]], Any]:
    """The local program: bags of the rows and of the indices at hand, divided by the sizes of whole bags for a mean."""
    weight, indices = plan.needs[0], plan.needs[1]

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> Any:
        args = list(pick(call.args, nodes))
        if weight.splits(0):
            args[0], args[1], padding = _own_rows(builder, weight, nodes, call.argument("padding_idx"))
            args = [*args, *(call.argument(name) for name in _OPTIONS[len(args) - 3 :])]
            args[-1] = padding
        args[2] = _local_offsets(builder, indices, args[2])
        made = builder.call(call.op, *args)
        if call.argument("mode") == SUM or not indices.splits(0):
            return made
        bags, listed, counts, _ = (builder.call(operator.getitem, made, index) for index in range(4))
        sums = builder.call(aten.mul.Tensor, bags, builder.call(aten.unsqueeze.default, counts, 1))
        for have, need, axis in _counted_over(call, indices):
            counts = builder.all_reduce(counts, axis, have, need)
        divisor = builder.call(aten.unsqueeze.default, builder.call(aten.clamp.default, counts, 1), 1)
        mean = builder.call(aten.div.Tensor, sums, divisor)
        return mean, listed, counts, counts

    return emit


_OPTIONS = ("scale_grad_by_freq", "mode", "sparse", "per_sample_weights", "include_last_offset", "padding_idx")


def _own_rows(
    builder: LocalGraphBuilder, weight: Layout, nodes: tuple[fx.Node, ...], padding: int
) -> tuple[fx.Node, fx.Node, int]:
    """The rows at hand, followed by a zero row for all others and one for padding; indices of these; which is padding.

    An index counts for the size of its bag wherever its row is, unless it is padding.
    """
    for split in weight.splits(0):
        builder.index(split.axis)
    runs = weight.runs(0, builder.coordinate)
    start, stop = runs[0] if runs else (0, 0)
    count = stop - start
    table = builder.pad(nodes[0], 2, 0, 2)
    here = builder.call(aten.sub.Tensor, nodes[1], start)
    absent = builder.call(
        aten.logical_or.default,
        builder.call(aten.lt.Scalar, here, 0),
        builder.call(aten.ge.Scalar, here, count),
    )
    rows = builder.call(aten.masked_fill.Scalar, here, absent, count)
    if padding < 0:
        return table, rows, padding
    is_padding = builder.call(aten.eq.Scalar, nodes[1], padding)
    return table, builder.call(aten.masked_fill.Scalar, rows, is_padding, count + 1), count + 1


def _local_offsets(builder: LocalGraphBuilder, indices: Layout, offsets: Any) -> Any:
    """Where each bag starts in this rank's part of the list: at its start or end for bags that lie elsewhere."""
    if not indices.splits(0):
        return offsets
    for split in indices.splits(0):
        builder.index(split.axis)
    runs = indices.runs(0, builder.coordinate)
    start, stop = runs[0] if runs else (0, 0)
    return builder.call(aten.clamp.default, builder.call(aten.sub.Tensor, offsets, start), 0, stop - start)


def _counted_over(call: OpCall, indices: Layout) -> list[tuple[Layout, Layout, str]]:
    """The layouts of the sizes of bags as they are added up over one axis after the other."""
    axes = [split.axis for split in indices.splits(0)]
    sizes = call.results[2]
    assert sizes is not None
    layouts = [
        Layout(
            sizes.shape,
            sizes.dtype,
            call.mesh,
            [PENDING if axis in axes[done:] else WHOLE for axis in call.mesh.axes],
        )
        for done in range(len(axes) + 1)
    ]
    return list(zip(layouts, layouts[1:], axes, strict=False))


RULES: dict[object, Callable[[OpCall], Plan]] = {
    aten._embedding_bag.default: plan_embedding_bag,
    aten._embedding_bag_forward_only.default: plan_embedding_bag,
    aten._embedding_bag_backward.default: plan_embedding_bag_backward,
}
