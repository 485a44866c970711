"""The place where autograd meets a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spmd_lab.run.plan import Plan

__all__ = ["run_plan"]


def run_plan(plan: Plan, values: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Run a plan on local tensors; autograd comes back to it if it has to."""
    if plan.is_differentiable and torch.is_grad_enabled():
        returned: tuple[torch.Tensor, ...] = _Call.apply(plan, *values)  # type: ignore[no-untyped-call]
        return returned
    with torch.no_grad(), _autocast_off(values):
        return plan.forward(values)[0]


def _autocast_off(values: Sequence[torch.Tensor]) -> torch.autocast:
    """A context in which operators run in the dtypes that were traced."""
    return torch.autocast(values[0].device.type if values else "cpu", enabled=False)


class _Call(torch.autograd.Function):
    """One call of a plan."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with _autocast_off(values):
            returned, saved = plan.forward(values)
        ctx.plan = plan
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(returned[index] for index in plan.without_gradient))
        return returned

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *received: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        with _autocast_off(ctx.saved_tensors):
            return None, *ctx.plan.backward(ctx.saved_tensors, received)
