"""The place where autograd meets a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor

from spmd_lab.torch_internals.dtensors import local_of, with_local

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spmd_lab.run.plan import Plan

__all__ = ["run_plan"]


def run_plan(plan: Plan, values: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Run a plan on local tensors, or on DTensors that hold them; autograd comes back to it if it has to."""
    if plan.is_differentiable and torch.is_grad_enabled():
        return _call(plan, *values)
    with torch.no_grad(), _autocast_off(values):
        return plan.forward([_local(each) for each in values])[0]


def _local(value: torch.Tensor) -> torch.Tensor:
    return local_of(value) if isinstance(value, DTensor) else value


def _autocast_off(values: Sequence[torch.Tensor]) -> torch.autocast:
    """A context in which operators run in the dtypes that were traced."""
    return torch.autocast(values[0].device.type if values else "cpu", enabled=False)


class _Call(torch.autograd.Function):
    """One call of a plan; the gradient of a DTensor is one."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with _autocast_off(values):
            returned, saved = plan.forward([_local(each) for each in values])
        ctx.plan = plan
        ctx.held = [each if isinstance(each, DTensor) else None for each in values]
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(returned[index] for index in plan.without_gradient))
        return returned

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *received: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        saved = list(ctx.saved_tensors)
        ctx.maybe_clear_saved_tensors()  # unless the graph is retained
        with _autocast_off(saved):
            gradients = ctx.plan.backward(saved, received)
        placements = ctx.plan.gradient_placements
        return None, *(
            gradient if held is None or gradient is None else with_local(held, gradient, placements[position])
            for position, (held, gradient) in enumerate(zip(ctx.held, gradients, strict=True))
        )


_call: Callable[..., tuple[torch.Tensor, ...]] = _Call.apply
