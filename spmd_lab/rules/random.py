"""Random draws that are those of a single device: every rank draws the whole tensor, and keeps its part.

Drawing a shard instead would give other numbers: the first ten of twenty draws are not ten draws, and strides decide in
which order a tensor is filled. All ranks draw in the same order, so that their generators stay in step.
"""

from __future__ import annotations

import math
import operator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from spmd_lab.errors import UnsupportedOperatorError
from spmd_lab.layout import Layout, replicated
from spmd_lab.local_graph import own_part
from spmd_lab.rules.plan import Plan, TensorArg
from spmd_lab.rules.strategies import pick, run_operator
from spmd_lab.streams import draw_locally, filling_strides

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.rules.plan import OpCall

__all__ = ["MOST_DRAWN_BYTES", "plan_draw"]

aten = torch.ops.aten

MOST_DRAWN_BYTES = 2 * 1024**3
"""What a rank may draw at once: more is refused."""

_IGNORE_VALUES = frozenset(
    {aten.bernoulli.p, aten.exponential.default, aten.geometric.default, aten.log_normal.default, aten.cauchy.default}
    | {aten.uniform.default, aten.normal_functional.default, aten.random.default, aten.random.to}
    | {getattr(aten.random, "from"), aten.rand_like.default, aten.randn_like.default, aten.randint_like.default}
    | {aten.randint_like.low_dtype}
)
"""Operators that fill a tensor like their first one, whatever that holds."""


def plan_draw(call: OpCall) -> Plan:
    """Plan an operator that draws random numbers.

    Raises
    ------
    UnsupportedOperatorError
        If the whole tensor is too large to be drawn on every rank.
    """
    if call.random == "local" and (plan := _plan_locally(call)) is not None:
        return plan
    drawn = sum(result.numel() * result.element_size() for result in call.results if result is not None)
    if drawn > MOST_DRAWN_BYTES:
        raise UnsupportedOperatorError(
            f"{call.title} draws {drawn / 1024**3:.1f} GiB, and every rank would draw all of it",
            hint='draw smaller tensors, as one for each layer; or random="local", where each rank draws its own part',
        )
    if call.op is aten.native_dropout.default:
        return _plan_dropout(call, drawn)
    if call.op in _IGNORE_VALUES:
        return _plan_like(call, drawn)
    needs = tuple(replicated(layout.global_shape, layout.dtype, call.mesh) for layout in call.has)
    run = run_operator(call)

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> Any:
        return run(builder, tuple(map(partial(_laid_out_as_traced, builder), nodes, call.tensors)))

    return Plan(needs, call.whole_outputs, emit, draw_bytes=drawn)


def _laid_out_as_traced(builder: LocalGraphBuilder, node: fx.Node, tensor: TensorArg) -> fx.Node:
    """A whole tensor in the order of memory that it has on one device: gathering lays elements out anew."""
    strides = filling_strides(tensor.layout.global_shape, tensor.stride)
    order = sorted(range(len(strides)), key=lambda dim: -strides[dim])
    if order == sorted(order):
        return builder.call(aten.contiguous.default, node)
    back = [order.index(dim) for dim in range(len(order))]
    moved = builder.call(aten.contiguous.default, builder.call(aten.permute.default, node, order))
    return builder.call(aten.permute.default, moved, back)


_BY_ELEMENT = frozenset({aten.bernoulli.default, aten.normal.Tensor_float, aten.poisson.default})
"""Operators whose only tensor says how each element is drawn."""


def _plan_locally(call: OpCall) -> Plan | None:
    """Let each shard draw its own numbers; None where every rank has to draw all of them anyway."""
    if call.op is not aten.native_dropout.default and call.op not in _IGNORE_VALUES | _BY_ELEMENT:
        return None
    given, *_ = call.tensors
    layout = given.layout if call.op in _IGNORE_VALUES else given.layout.settled()
    placed = layout.settled()
    axes = [split.axis for dim in range(len(placed.global_shape)) for split in placed.splits(dim)]
    if not axes:
        return None
    outputs = call.output_layouts([placed.placements] * len(call.results))

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> fx.Node | tuple[fx.Node, fx.Node]:
        shard = 0
        for axis in axes:
            shard = shard * call.mesh.axis_size(axis) + builder.index(axis)
        made = builder.call(draw_locally, call.op, shard, *pick(call.args, nodes), **pick(call.kwargs, nodes))
        if call.op is not aten.native_dropout.default:
            return made
        out, mask = (builder.call(operator.getitem, made, index) for index in range(2))
        return out, builder.call(aten._to_copy.default, mask, dtype=torch.bool)  # of nothing, the mask is no bool

    drawn = sum(result.element_size() for result in call.results if result is not None)
    size = math.prod(placed.largest_local_shape)
    return Plan((layout,), outputs, emit, draw_bytes=drawn * size, draws_locally=True)


def _whole_like(builder: LocalGraphBuilder, node: fx.Node, tensor: TensorArg) -> fx.Node:
    """An unwritten tensor with the sizes and strides of a whole one: they decide which number goes where."""
    shape, stride = list(tensor.layout.global_shape), list(tensor.stride)
    return builder.call(aten.new_empty_strided.default, node, shape, stride)


def _plan_like(call: OpCall, drawn: int) -> Plan:
    """A tensor like the first one, divided as that is: what it holds is never read, not even where it is pending."""
    like, *_ = call.tensors
    (result,) = call.results
    assert result is not None
    output = Layout(result.shape, result.dtype, call.mesh, like.layout.settled().placements)
    position = call.args.index(like)

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> fx.Node:
        args: list[Any] = list(call.args)
        args[position] = _whole_like(builder, nodes[0], like)
        return own_part(builder, builder.call(call.op, *args, **call.kwargs), output)

    return Plan(call.has, (output,), emit, draw_bytes=drawn)


def _plan_dropout(call: OpCall, drawn: int) -> Plan:
    """``native_dropout(input, p, train) -> output, mask``: the mask is drawn whole, by the same kernel."""
    (given,) = call.tensors
    layout = given.layout.settled()
    masks = Layout(layout.global_shape, torch.bool, call.mesh, layout.placements)
    p, train = call.argument("p"), call.argument("train")
    emit: Callable[[LocalGraphBuilder, tuple[fx.Node, ...]], Any] = run_operator(call)
    if train is False:
        return Plan((layout,), (layout, masks), emit)

    def draw(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> tuple[fx.Node, fx.Node]:
        whole = builder.call(call.op, _whole_like(builder, nodes[0], given), p, True)
        mask = own_part(builder, builder.call(operator.getitem, whole, 1), masks)
        kept = builder.call(aten.mul.Tensor, nodes[0], mask)
        return builder.call(aten.mul.Tensor, kept, 0.0 if p == 1 else 1 / (1 - p)), mask

    return Plan((layout,), (layout, masks), draw, draw_bytes=drawn)
