"""The whole tensors that a program is verified on: those it was traced with, the user's, or drawn ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from spmd_lab.errors import ArgumentError, expect, nearest
from spmd_lab.prove.draw import drawn
from spmd_lab.torch_internals.fakes import is_fake

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spmd_lab.trace.values import TracedGraph, TracedInput

__all__ = ["global_values", "is_real"]


def global_values(
    traced: TracedGraph, given: Mapping[str, torch.Tensor] | Sequence[torch.Tensor | None] | None, seed: int
) -> tuple[torch.Tensor, ...]:
    """One real tensor per input of the traced program.

    Parameters
    ----------
    traced : TracedGraph
        The program of one device.
    given : mapping, sequence or None
        Values by the names of inputs, or by position for the tensor inputs that are neither parameters, buffers nor
        closed over (None: the default). By default inputs have the values that they were traced with, and parameters
        their present ones; where those are fake, and for tangents, values are drawn.
    seed : int
        Of what is drawn.

    Raises
    ------
    ArgumentError
        If a name is unknown, or a shape or dtype differs from what was traced.
    """
    chosen = _by_name(traced, given)
    values = []
    for position, (each, example) in enumerate(zip(traced.inputs, traced.values, strict=True)):
        if each.name in chosen:
            values.append(_checked(each, chosen[each.name]))
        elif each.role != "tangent" and is_real(example):
            values.append(example.detach())
        else:
            generator = torch.Generator().manual_seed(seed * 100_003 + position)
            values.append(drawn(traced, each, generator).to(_device(example)))
    return tuple(values)


def is_real(tensor: torch.Tensor) -> bool:
    """Whether a tensor has data."""
    return not is_fake(tensor) and tensor.device.type != "meta"


def _device(example: torch.Tensor) -> torch.device:
    return torch.device("cpu") if example.device.type == "meta" else example.device


def _by_name(
    traced: TracedGraph, given: Mapping[str, torch.Tensor] | Sequence[torch.Tensor | None] | None
) -> dict[str, torch.Tensor]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {_known(traced, name): value for name, value in given.items()}
    if isinstance(given, torch.Tensor):
        given = (given,)
    expect(given, (list, tuple), "inputs", 'by name: inputs={"x": x}; or a list, in order: inputs=[x]')
    places = [each.name for each in traced.inputs if each.role == "input" and not each.closure]
    if len(given) > len(places):
        raise ArgumentError(
            f"{traced.name} has {len(places)} tensor inputs, not {len(given)}",
            argument="inputs",
            hint="in order: " + (", ".join(places) or "none"),
        )
    return {name: value for name, value in zip(places, given, strict=False) if value is not None}


def _known(traced: TracedGraph, name: str) -> str:
    for each in traced.inputs:
        if name in each.names:
            return each.name
    names = [alias for each in traced.inputs for alias in each.names]
    raise ArgumentError(f"{traced.name} has no input {name!r}", argument="inputs", hint=nearest(name, names))


def _checked(known: TracedInput, value: torch.Tensor) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or not is_real(value):
        raise ArgumentError(
            f"input {known.name!r} is given {type(value).__name__}, which has no data",
            argument=f"inputs[{known.name!r}]",
            hint="a tensor with data",
        )
    if tuple(value.shape) != known.global_shape or value.dtype != known.dtype:
        raise ArgumentError(
            f"input {known.name!r} was traced as {list(known.global_shape)} {known.dtype}, "
            f"not {list(value.shape)} {value.dtype}",
            argument=f"inputs[{known.name!r}]",
            hint="whole tensors, of the shapes and dtypes that were traced",
        )
    return value.detach()
