"""Fake tensors: shapes and dtypes without memory."""

from __future__ import annotations

import logging
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch._subclasses.functional_tensor import FunctionalTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "DataDependence",
    "FakeTensorMode",
    "counted_mode",
    "data_dependence",
    "fake_like",
    "is_fake",
    "is_fake_of",
    "is_traced_value",
    "operator_without_shapes",
    "quiet_failures",
]


class DataDependence(NamedTuple):
    """What depends on the data of a tensor, and the operator that makes it."""

    kind: Literal["value", "shape"]
    operator: str


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor is fake: it has a shape and no data."""
    return isinstance(tensor, FakeTensor)


def is_fake_of(tensor: torch.Tensor, mode: FakeTensorMode) -> bool:
    """Whether a tensor is fake and belongs to a given mode."""
    return isinstance(tensor, FakeTensor) and tensor.fake_mode is mode


def is_traced_value(value: object) -> bool:
    """Whether a value belongs to the program that is being exported; what ``torch.func`` wraps does too."""
    return type(value) is FunctionalTensor or (
        isinstance(value, torch.Tensor) and bool(torch._C._functorch.is_functorch_wrapped_tensor(value))
    )


def counted_mode(done: Callable[[], None]) -> FakeTensorMode:
    """Fake tensors, and a call of ``done`` after each operator that runs on them.

    Branches, loops and operators that write know what to do by the very type of a mode: it has none of its own.
    """
    mode = FakeTensorMode()
    dispatch = mode.dispatch

    def counted(*call: Any) -> Any:
        made = dispatch(*call)
        done()
        return made

    mode.dispatch = counted  # type: ignore[method-assign, assignment]
    return mode


def fake_like(mode: FakeTensorMode, tensor: torch.Tensor, device: torch.device, requires_grad: bool) -> torch.Tensor:
    """A fake tensor with the sizes, strides and dtype of another, on a device of our choice."""
    sizes, strides = [int(size) for size in tensor.shape], [int(stride) for stride in tensor.stride()]
    blank = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device="meta")
    fake: torch.Tensor = FakeTensor(mode, blank, device)
    return fake.requires_grad_(requires_grad)


def data_dependence(error: BaseException) -> DataDependence | None:
    """Whether an error says that a value, or a shape, depends on the data of a tensor."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, DataDependentOutputException):
            return DataDependence("value", str(current.func))
        if isinstance(current, DynamicOutputShapeException):
            return DataDependence("shape", str(current.func))
        current = current.__cause__ or current.__context__
    return None


def operator_without_shapes(error: BaseException) -> str | None:
    """The operator of which an error says that nobody has told which shapes it returns."""
    return str(error.func) if isinstance(error, UnsupportedOperatorException) else None


@contextmanager
def quiet_failures() -> Iterator[None]:
    """Keep torch from logging a failure of the traced program, which is raised as well."""
    log = logging.getLogger(FakeTensorMode.__module__)
    was_disabled = log.disabled
    log.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Error detected in")
            yield
    finally:
        log.disabled = was_disabled
