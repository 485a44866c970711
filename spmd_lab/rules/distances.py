"""Distances of points to points, and rows that are rescaled by their norms: rows are independent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spmd_lab.rules.along import LINEAR, pending_ways, plan_along, under

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from spmd_lab.rules.plan import OpCall, Plan

__all__ = ["RULES"]

aten = torch.ops.aten


def plan_cdist(call: OpCall) -> Plan:
    """Plan ``_cdist_forward(x1, x2, p, compute_mode)``: distances of rows to rows."""
    (result,) = call.results
    assert result is not None
    batch = result.shape[:-2]
    first, other = (_batched(layout.global_shape, batch) for layout in call.has)
    return plan_along(
        call, [[*first, "row", None], [*other, "column", None]], [[*_batched(result.shape, batch), "row", "column"]]
    )


def plan_cdist_backward(call: OpCall) -> Plan:
    """Plan ``_cdist_backward(grad, x1, x2, p, cdist)``, the gradient of the first rows."""
    (result,) = call.results
    assert result is not None
    batch = result.shape[:-2]
    grad, first, other, distances = (_batched(layout.global_shape, batch) for layout in call.has)
    return plan_along(
        call,
        [
            [*grad, "row", "column"],
            [*first, "row", None],
            [*other, "column", None],
            [*distances, "row", "column"],
        ],
        [[*_batched(result.shape, batch), "row", None]],
        more=pending_ways(call, [call.tensors[:1]], LINEAR),
    )


def _batched(shape: Sequence[int], batch: Sequence[int]) -> Sequence[Hashable | None]:
    return under(shape[:-2], batch)


def plan_renorm(call: OpCall) -> Plan:
    """Plan ``renorm(self, p, dim, maxnorm)``: what is rescaled together stays together."""
    ndim = len(call.has[0].global_shape)
    labels = [dim if dim == call.argument("dim") % ndim else None for dim in range(ndim)]
    return plan_along(call, [labels], [labels])


def plan_weight_norm(call: OpCall) -> Plan:
    """Plan ``_weight_norm_interface(v, g, dim)``; the kernel stops the process on empty shards."""
    ndim = len(call.has[0].global_shape)
    labels = [dim if dim == call.argument("dim") % ndim else None for dim in range(ndim)]
    return plan_along(call, [labels] * 2, [labels] * 2)


def plan_weight_norm_backward(call: OpCall) -> Plan:
    """Plan ``_weight_norm_interface_backward(grad_w, saved_v, saved_g, saved_norms, dim)``."""
    ndim = len(call.has[0].global_shape)
    labels = [dim if dim == call.argument("dim") % ndim else None for dim in range(ndim)]
    return plan_along(call, [labels] * 4, [labels] * 2, more=pending_ways(call, [call.tensors[:1]], LINEAR))


RULES: dict[object, Callable[[OpCall], Plan]] = {
    aten._cdist_backward.default: plan_cdist_backward,
    aten._cdist_forward.default: plan_cdist,
    aten._weight_norm_interface.default: plan_weight_norm,
    aten._weight_norm_interface_backward.default: plan_weight_norm_backward,
    aten.renorm.default: plan_renorm,
}
