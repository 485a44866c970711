"""The operators of torch's own test table, and samples of their arguments that are the same in every run."""

from __future__ import annotations

import itertools
import random
import zlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Sample", "dtype_of", "operators", "samples", "tensors_in"]

MOST_ELEMENTS = 20_000
MOST_LOOKED_AT = 200
DTYPES = (torch.float32, torch.int64, torch.complex64, torch.bool, torch.float16)


@dataclass(frozen=True)
class Sample:
    """One call of an operator.

    Parameters
    ----------
    number : int
        Its place among the samples that torch gives.
    tensors : tuple of torch.Tensor
        The tensors in its arguments, in order.
    call : callable
        Takes as many tensors and calls the operator with them.
    """

    number: int
    tensors: tuple[torch.Tensor, ...]
    call: Callable[..., Any]


@cache
def operators() -> dict[str, Any]:
    """The entries of torch's table by name, ``name.variant`` where there are variants."""
    from torch.testing._internal import common_methods_invocations as table

    # The table seeds random operators inside their calls, which would be refused; here the harness seeds.
    table.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return {".".join(filter(None, (each.name, each.variant_test_name))): each for each in table.op_db}


def dtype_of(entry: Any) -> torch.dtype | None:
    """float32; for an operator that does not take it, the first that it takes of int64, complex64, bool, float16."""
    supported = entry.supported_dtypes("cpu")
    return next((dtype for dtype in DTYPES if dtype in supported), None)


def samples(name: str, count: int) -> list[Sample]:
    """At most ``count`` samples of small strided tensors: the first ones, and as many again spread over the rest."""
    entry = operators()[name]
    dtype = dtype_of(entry)
    if dtype is None:
        return []
    seed = zlib.crc32(name.encode())
    torch.manual_seed(seed)
    random.seed(seed)
    differentiable = entry.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    given = entry.sample_inputs("cpu", dtype, requires_grad=differentiable)
    found = [
        _sample(number, entry, each)
        for number, each in enumerate(itertools.islice(given, MOST_LOOKED_AT))
        if _is_small(each)
    ]
    first = found[: (count + 1) // 2]
    rest = found[len(first) :]
    wanted = min(count - len(first), len(rest))
    return first + [rest[(each + 1) * len(rest) // wanted - 1] for each in range(wanted)]


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in nested containers, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in tensors_in(each)]
    return []


def _is_small(sample: Any) -> bool:
    tensors = tensors_in([sample.input, sample.args, sample.kwargs])
    if any(each.layout != torch.strided or each.is_quantized for each in tensors):
        return False
    return sum(each.numel() for each in tensors) <= MOST_ELEMENTS


def _sample(number: int, entry: Any, sample: Any) -> Sample:
    arguments = [sample.input, list(sample.args), dict(sample.kwargs)]
    tensors = tuple(tensors_in(arguments))
    template = _exchanged(arguments, torch.Tensor, itertools.repeat(_HOLE))
    operator = entry.op

    def call(*tensors: torch.Tensor) -> Any:
        first, args, kwargs = _exchanged(template, _Hole, iter(tensors))
        return operator(first, *args, **kwargs)

    call.__name__ = entry.name.replace(".", "_")
    return Sample(number, tensors, call)


class _Hole:
    """Stands where a tensor was: a traced function that held the tensor would have it as an input of its own."""


_HOLE = _Hole()


def _exchanged(value: Any, kind: type, new: Iterator[Any]) -> Any:
    """The same containers with other values in place of those of a kind."""
    if isinstance(value, kind):
        return next(new)
    if isinstance(value, dict):
        return {key: _exchanged(each, kind, new) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_exchanged(each, kind, new) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
