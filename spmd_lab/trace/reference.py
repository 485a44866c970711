"""The user's program, run eagerly on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from spmd_lab.torch_internals.export import ExportedValue
from spmd_lab.trace.values import Reference

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spmd_lab.trace.program import UserProgram

__all__ = ["Exchange", "Plan", "reference"]


class Exchange(TorchFunctionMode):
    """While it is on, tensors that the user's code closes over are exchanged for others."""

    def __init__(self, exchange: Mapping[int, torch.Tensor]) -> None:
        super().__init__()
        self._exchange = exchange

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*self._new(args), **self._new(kwargs or {}))

    def _new(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._exchange.get(id(value), value)
        if type(value) in (tuple, list):
            return type(value)(self._new(each) for each in value)
        if type(value) is dict:
            return {key: self._new(each) for key, each in value.items()}
        return value


@dataclass(frozen=True)
class Plan:
    """What a flat program takes and gives, in terms of the user's program.

    Parameters
    ----------
    differentiated : tuple of int
        The slots that gradients are taken of.
    tangents : tuple of ExportedValue
        The tangent inputs, in order; they follow the slots.
    outputs : tuple of ExportedValue or constant
        The outputs, in order.
    """

    differentiated: tuple[int, ...]
    tangents: tuple[ExportedValue, ...]
    outputs: tuple[Any, ...]


def reference(program: UserProgram, plan: Plan) -> Reference:
    """The user's program as a function of flat tensors, to be run by eager PyTorch."""

    def run(values: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
        given, tangents = values[: len(program.slots)], values[len(program.slots) :]
        leaves = [value.detach().requires_grad_(index in plan.differentiated) for index, value in enumerate(given)]
        eagerly = torch.compiler.set_stance("force_eager")  # parts of the program may be compiled
        with eagerly, torch.set_grad_enabled(bool(plan.differentiated)):
            flat = [leaf.clone() for leaf in leaves]
            exchange = program.exchange(flat)
            results = program.run(flat, lambda: Exchange(exchange))
            tensors = results.tensors(lambda tensor: exchange.get(id(tensor), tensor))
            computed: dict[ExportedValue, Any] = {
                **{ExportedValue("output", index): tensor for index, tensor in enumerate(tensors)},
                **{ExportedValue("new value", index): tensor for index, tensor in enumerate(flat)},
            }
            computed |= _gradients(program, plan, leaves, computed, tangents)
        return tuple(_plain(computed.get(each)) if isinstance(each, ExportedValue) else each for each in plan.outputs)

    return Reference(run)


def _gradients(
    program: UserProgram,
    plan: Plan,
    leaves: Sequence[torch.Tensor],
    computed: Mapping[ExportedValue, Any],
    tangents: Sequence[torch.Tensor],
) -> dict[ExportedValue, Any]:
    """What autograd gives for each differentiated slot."""
    if program.loss is not None and not plan.tangents:
        heads = [computed[ExportedValue("output", 0)]]
        tangents = [torch.ones_like(heads[0])]
    else:
        heads = [computed[ExportedValue(tangent.of or "output", tangent.index)] for tangent in plan.tangents]
    if not plan.differentiated or not any(head.requires_grad for head in heads):
        return {}
    wanted = [leaves[index] for index in plan.differentiated]
    found = torch.autograd.grad(heads, wanted, list(tangents), allow_unused=True)
    return {ExportedValue("gradient", index): each for index, each in zip(plan.differentiated, found, strict=True)}


def _plain(value: torch.Tensor | None) -> torch.Tensor | None:
    return None if value is None else value.detach()
