"""The rules that torch has: asked, checked, and turned into plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.errors import LayoutError, UnsupportedOperatorError
from spmd_lab.layout import Layout, replicated
from spmd_lab.rules.plan import Plan, TensorArg
from spmd_lab.rules.strategies import pick, run_operator
from spmd_lab.torch_internals.operators import is_random
from spmd_lab.torch_internals.placements import StridedShard, is_plain_partial
from spmd_lab.torch_internals.sharding import NoStockRuleError, StockAnswer, TensorSlot, ask_stock_rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx
    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.rules.plan import OpCall

__all__ = ["plan_by_stock_rule", "plan_whole"]


def plan_by_stock_rule(call: OpCall) -> Plan:
    """Plan a call as torch's own rule says; gather everything where that rule is known to give wrong numbers.

    Raises
    ------
    UnsupportedOperatorError
        If torch has no rule for the operator, or the operator draws random numbers.
    """
    if is_random(call.op):
        raise UnsupportedOperatorError(
            f"{call.title} draws random numbers; exact draws on a mesh are not supported yet",
            hint="model.eval(), dropout=0.0, or draw the numbers outside and pass them in",
        )
    if any(isinstance(value, TensorArg) for value in call.kwargs.values()):
        return plan_whole(call, "torch's rules do not see tensors passed by keyword")
    answer = _ask(call, rank=0)
    try:
        needs = tuple(
            tensor.layout.with_placements(placements)
            for tensor, placements in zip(call.tensors, answer.needs, strict=True)
        )
        outputs = _outputs(call, answer)
    except LayoutError as error:
        raise UnsupportedOperatorError(
            f"torch's rule for {call.title} answers with placements that do not fit: {error.what}"
        ) from error
    doubt = _doubt(needs, outputs)
    if doubt is not None:
        return plan_whole(call, doubt)
    return Plan(needs, outputs, _run_answer(call, answer, needs, outputs))


def plan_whole(call: OpCall, why: str) -> Plan:
    """Plan a call by gathering every tensor, and mark it as a fallback."""
    needs = tuple(replicated(layout.global_shape, layout.dtype, call.mesh) for layout in call.has)
    outputs = tuple(None if meta is None else replicated(*meta, call.mesh) for meta in call.outputs)
    return Plan(needs, outputs, run_operator(call), fallback=why)


def _ask(call: OpCall, rank: int) -> StockAnswer:
    try:
        return ask_stock_rule(call.op, _slots(call.args), _slots(call.kwargs), call.mesh.shape, rank)
    except NoStockRuleError as error:
        raise UnsupportedOperatorError(
            f"no sharding rule for {call.title}",
            layouts={f"tensor {tensor.index}": tensor.layout for tensor in call.tensors},
            hint=f"replicate what it reads; torch says: {str(error).splitlines()[0][:200]}",
        ) from error


def _slots(value: Any) -> Any:  # noqa: ANN401
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
    if len(placements) == 1 and len(call.outputs) > 1:
        placements = placements * len(call.outputs)
    if len(placements) < len(call.outputs):
        raise UnsupportedOperatorError(
            f"torch's rule for {call.title} speaks of {len(placements)} outputs, it has {len(call.outputs)}"
        )
    return tuple(
        None if meta is None else _layout(call, meta, placed)
        for meta, placed in zip(call.outputs, placements, strict=False)
    )


def _layout(call: OpCall, meta: Any, placements: tuple[Placement, ...] | None) -> Layout:  # noqa: ANN401
    if placements is None:
        raise UnsupportedOperatorError(f"torch's rule for {call.title} says nothing of one of its outputs")
    return Layout(*meta, call.mesh, placements)


def _doubt(needs: tuple[Layout, ...], outputs: tuple[Layout | None, ...]) -> str | None:
    """Why these placements cannot be trusted; None if they can."""
    uneven = frozenset[str]().union(*(layout.uneven_axes for layout in needs))
    for layout in filter(None, outputs):
        for axis, placement in zip(layout.mesh.axes, layout.placements, strict=True):
            if isinstance(placement, Partial) and not is_plain_partial(placement):
                return f"a {type(placement).__name__.strip('_')} of torch keeps state that does not travel"
            if isinstance(placement, Partial) and placement.reduce_op == "avg" and axis in uneven:
                return f"a mean over shards of different sizes along {axis} is not the mean of their means"
    if not all(isinstance(each, (Replicate, Shard, StridedShard, Partial)) for need in needs for each in need.placements):
        return "a placement of torch that is not in the notation"
    return None


def _run_answer(
    call: OpCall, answer: StockAnswer, needs: tuple[Layout, ...], outputs: tuple[Layout | None, ...]
) -> Callable[[LocalGraphBuilder, tuple[fx.Node, ...]], fx.Node]:
    """The local program: the operator with arguments whose sizes are this rank's."""
    uneven = frozenset[str]().union(*(layout.uneven_axes for layout in (*needs, *filter(None, outputs))))

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> fx.Node:
        here = answer
        if uneven and (answer.op is not call.op or answer.args != _slots(call.args)):
            builder.depends_on |= uneven
            here = _ask(call, rank=call.mesh.rank(builder.coordinate))
        return builder.call(here.op, *pick(here.args, nodes), **pick(here.kwargs, nodes))

    return emit
