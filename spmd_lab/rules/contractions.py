"""Products of matrices and vectors that torch divides too little: each dim is kept, summed over, or shared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spmd_lab.rules.along import LINEAR, pending_ways, plan_along, under

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from spmd_lab.rules.plan import OpCall, Plan

__all__ = ["RULES"]

aten = torch.ops.aten


def plan_added_product(call: OpCall) -> Plan:
    """Plan ``beta * self + alpha * (one @ other)`` of some kind; ``self`` is stretched to the result."""
    (result,) = call.results
    assert result is not None
    this, one, other = call.tensors
    spelled, made = _DIMS[call.op], _DIMS[call.op][-1]
    named: dict[Hashable | None, str] = {back: made[back] for back in range(-len(made), 0)}
    labels = [named.get(back) for back in under(this.layout.global_shape, result.shape)]
    more = pending_ways(call, [[this, one], [this, other]], LINEAR)
    return plan_along(call, [labels, *spelled[:2]], [made], added=[0], more=more)


def plan_product(call: OpCall) -> Plan:
    """Plan a product of two tensors, linear in each."""
    one, other, made = _DIMS[call.op]
    groups = [[tensor] for tensor in call.tensors]
    return plan_along(call, [one, other], [made], more=pending_ways(call, groups, LINEAR))


def plan_trilinear(call: OpCall) -> Plan:
    """Plan ``_trilinear(i1, i2, i3, expand1, expand2, expand3, sumdim)``: a product of three, some dims summed over."""
    total = len(call.has[0].global_shape) + len(call.argument("expand1"))
    held = [[dim for dim in range(total) if dim not in call.argument(f"expand{which}")] for which in (1, 2, 3)]
    sizes = [
        max(layout.global_shape[dims.index(dim)] for layout, dims in zip(call.has, held, strict=True) if dim in dims)
        for dim in range(total)
    ]
    labels = [
        [dim if size == sizes[dim] else None for dim, size in zip(dims, layout.global_shape, strict=True)]
        for layout, dims in zip(call.has, held, strict=True)
    ]
    made = [dim for dim in range(total) if dim not in call.argument("sumdim")]
    groups = [[tensor] for tensor in call.tensors]
    return plan_along(call, labels, [made], more=pending_ways(call, groups, LINEAR))


_DIMS: dict[object, tuple[str, str, str]] = {
    aten.addbmm.default: ("bnm", "bmp", "np"),
    aten.addmv.default: ("nm", "m", "n"),
    aten.addr.default: ("n", "m", "nm"),
    aten.baddbmm.default: ("bnm", "bmp", "bnp"),
    aten.mv.default: ("nm", "m", "n"),
    aten.vdot.default: ("n", "n", ""),
}
"""The dims of both factors and of the result, a letter each."""

RULES: dict[object, Callable[[OpCall], Plan]] = {
    aten._trilinear.default: plan_trilinear,
    aten.addbmm.default: plan_added_product,
    aten.addmv.default: plan_added_product,
    aten.addr.default: plan_added_product,
    aten.baddbmm.default: plan_added_product,
    aten.mv.default: plan_product,
    aten.vdot.default: plan_product,
}
