"""The rules that torch has: asked, checked, and turned into plans."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.errors import LayoutError
from spmd_lab.layout import Layout, replicated
from spmd_lab.rules.casts import passes_cast
from spmd_lab.rules.checking import misfit
from spmd_lab.rules.from_nothing import from_nothing, refuses_nothing
from spmd_lab.rules.plan import Plan, TensorArg
from spmd_lab.rules.strategies import Way, aligned, choose_ways, pick, run_operator
from spmd_lab.torch_internals.placements import StridedShard, is_plain_partial
from spmd_lab.torch_internals.sharding import NoStockRuleError, StockAnswer, TensorSlot, ask_stock_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import fx

    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.rules.plan import OpCall

__all__ = ["plan_by_stock_rule", "plan_whole"]

_NOT_LINEAR = frozenset({torch.ops.aten.nansum.default, torch.ops.aten.view.dtype})
"""Operators through which torch lets pending sums pass, though pieces may be nan alone, and bits do not add up."""


def plan_by_stock_rule(call: OpCall) -> Plan:
    """Plan a call as torch's own rule says; gather everything where that rule is known to give wrong numbers."""
    if any(isinstance(value, TensorArg) for value in call.kwargs.values()):
        return plan_whole(call, f"torch's rules do not see the tensors that {call.title} takes by keyword")
    plan = _plan_as_torch_says(call)
    if torch.Tag.pointwise in call.op.tags and _gathered(call, plan.needs):
        return _plan_by_element(call) or plan
    return plan


def _plan_by_element(call: OpCall) -> Plan | None:
    """Divide all tensors alike where torch would rather gather one: it does with few rows, and with scattered ones."""
    shape = torch.broadcast_shapes(*(tensor.layout.global_shape for tensor in call.tensors))
    if any(result is None or result.shape != shape for result in call.results):
        return None
    ways = [
        Way(tuple(aligned(tensor, dim, shape) for tensor in call.tensors), (Shard(dim),) * len(call.results))
        for dim in range(len(shape))
    ]
    plan = choose_ways(call, ways, any_order=True)
    return None if _gathered(call, plan.needs) or misfit(call, plan) else plan


def _plan_as_torch_says(call: OpCall) -> Plan:
    refusal: str | None = None
    wrong: str | None = None
    for asked in _ever_more_whole(call):
        if call.op in _NOT_LINEAR and any(tensor.layout.is_pending for tensor in asked.tensors):
            continue
        try:
            plan = _plan_as_answered(call, asked)
        except (NoStockRuleError, LayoutError) as error:
            refusal = refusal or _first_line(error)
            continue
        doubt = _doubt(plan) or misfit(call, plan)
        if doubt is None:
            return replace(
                plan, fallback=wrong if _gathered(call, [tensor.layout for tensor in asked.tensors]) else None
            )
        wrong = wrong or f"torch's rule for {call.title} is wrong here: {doubt}"
    return plan_whole(call, wrong or f"no sharding rule for {call.title}: {refusal}")


def _plan_as_answered(call: OpCall, asked: OpCall) -> Plan:
    """The plan for a call, from torch's answer for the same call on layouts that are more whole."""
    answer = _ask(asked, rank=0)
    needs = tuple(
        tensor.layout.with_placements(placements) for tensor, placements in zip(call.tensors, answer.needs, strict=True)
    )
    outputs = _outputs(call, answer)
    return Plan(needs, outputs, _run_answer(asked, answer, needs, outputs))


def _gathered(call: OpCall, needs: Sequence[Layout]) -> bool:
    """Whether shards are made whole, not pending sums alone."""
    return any(
        not isinstance(was, (Partial, Replicate)) and isinstance(now, Replicate)
        for tensor, need in zip(call.tensors, needs, strict=True)
        for was, now in zip(tensor.layout.placements, need.placements, strict=True)
    )


def plan_whole(call: OpCall, why: str) -> Plan:
    """Plan a call by gathering every tensor, and mark it as a fallback where there is anything to gather."""
    needs = tuple(replicated(layout.global_shape, layout.dtype, call.mesh) for layout in call.has)
    return Plan(needs, call.whole_outputs, run_operator(call), fallback=None if needs == call.has else why)


def _ever_more_whole(call: OpCall) -> Iterator[OpCall]:
    """The call as it is, then with ever more axes made whole: pending ones, uneven ones, any single one, all."""
    yield call
    seen = {call.has}
    single = [partial(_is_other_axis, left_out) for left_out in call.mesh.axes]
    choices: list[Callable[[Layout, str], bool]] = [_is_settled, _is_settled_and_even, *single, lambda *_: False]
    for is_kept in choices:
        tensors = tuple(replace(tensor, layout=_whole_unless(is_kept, tensor.layout)) for tensor in call.tensors)
        if (has := tuple(tensor.layout for tensor in tensors)) not in seen:
            seen.add(has)
            yield replace(call, args=_retold(call.args, tensors), kwargs=_retold(call.kwargs, tensors), tensors=tensors)


def _is_other_axis(left_out: str, _layout: Layout, axis: str) -> bool:
    return axis != left_out


def _is_settled(layout: Layout, axis: str) -> bool:
    return axis not in layout.pending


def _is_settled_and_even(layout: Layout, axis: str) -> bool:
    return axis not in layout.pending and axis not in layout.uneven_axes


def _whole_unless(is_kept: Callable[[Layout, str], bool], layout: Layout) -> Layout:
    kept = [is_kept(layout, axis) for axis in layout.mesh.axes]
    return layout.with_placements(
        [placement if keep else Replicate() for keep, placement in zip(kept, layout.placements, strict=True)]
    )


def _retold(value: Any, tensors: tuple[TensorArg, ...]) -> Any:
    """The same arguments, with other layouts for the tensors."""
    if isinstance(value, TensorArg):
        return tensors[value.index]
    if isinstance(value, dict):
        return {key: _retold(each, tensors) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_retold(each, tensors) for each in value)
    return value


def _ask(call: OpCall, rank: int) -> StockAnswer:
    return ask_stock_rule(call.op, _slots(call.args), _slots(call.kwargs), call.result, call.mesh.shape, rank)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")[:200]


def _slots(value: Any) -> Any:
    if isinstance(value, TensorArg):
        layout = value.layout
        return TensorSlot(value.index, layout.global_shape, value.stride, layout.dtype, layout.placements)
    if isinstance(value, dict):
        return {key: _slots(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_slots(each) for each in value)
    return value


def _outputs(call: OpCall, answer: StockAnswer) -> tuple[Layout | None, ...]:
    """The layout of each output; an answer for one output stands for all."""
    placements = answer.outputs
    if len(placements) == 1:
        placements = placements * len(call.results)
    missing = [
        index
        for index, result in enumerate(call.results)
        if result is not None and placements[index:][:1] in ((), (None,))
    ]
    if missing:
        raise NoStockRuleError(f"it says nothing of output {missing[0]}")
    return call.output_layouts(placements[: len(call.results)])


def _doubt(plan: Plan) -> str | None:
    """Why the placements of a plan cannot be trusted; None if they can."""
    uneven = frozenset[str]().union(*(layout.uneven_axes for layout in plan.needs))
    for layout in filter(None, plan.outputs):
        for axis, placement in zip(layout.mesh.axes, layout.placements, strict=True):
            if isinstance(placement, Partial) and not is_plain_partial(placement):
                return f"a {type(placement).__name__.strip('_')} keeps state that does not travel"
            if isinstance(placement, Partial) and placement.reduce_op == "avg" and axis in uneven:
                return f"a mean over shards of different sizes along {axis} is not the mean of their means"
            if isinstance(placement, Partial) and placement.reduce_op in ("max", "min") and layout.dtype.is_complex:
                return "complex numbers have no order"
            if isinstance(placement, Partial) and not _survives(axis, plan.needs, layout):
                return f"rounded to {layout.dtype}, the pieces along {axis} do not make up the {placement.reduce_op}"
    if not all(
        isinstance(each, (Replicate, Shard, StridedShard, Partial)) for need in plan.needs for each in need.placements
    ):
        return "it needs a placement that is not in the notation"
    return None


def _survives(axis: str, needs: Sequence[Layout], output: Layout) -> bool:
    """Whether what is pending along an axis may have the dtype of an output."""
    pending = [(need.pending[axis], need.dtype) for need in needs if axis in need.pending]
    return all(passes_cast(kind, dtype, output.dtype) for kind, dtype in pending)


def _run_answer(
    call: OpCall, answer: StockAnswer, needs: tuple[Layout, ...], outputs: tuple[Layout | None, ...]
) -> Callable[[LocalGraphBuilder, tuple[fx.Node, ...]], fx.Node | tuple[fx.Node | None, ...]]:
    """The local program: the operator with arguments whose sizes are this rank's."""
    uneven = frozenset[str]().union(*(layout.uneven_axes for layout in (*needs, *filter(None, outputs))))

    may_refuse = bool(uneven) and refuses_nothing(answer.op)

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> fx.Node | tuple[fx.Node | None, ...]:
        here = answer
        if may_refuse and (made := from_nothing(builder, nodes, needs, outputs)) is not None:
            return made
        if uneven and (answer.op is not call.op or answer.args != _slots(call.args)):
            builder.depends_on |= uneven
            here = _ask(call, rank=call.mesh.rank(builder.coordinate))
        return builder.call(here.op, *pick(here.args, nodes), **pick(here.kwargs, nodes))

    return emit
