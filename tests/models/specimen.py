"""What a model of the zoo is: the model, inputs, a loss, and the usual way to divide it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import spmd_lab as sl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch import nn

__all__ = ["Specimen", "columns_then_rows"]


def its_loss(out: Any) -> torch.Tensor:
    """The loss that a model of the transformers library returns."""
    return out.loss  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Specimen:
    """A model with inputs.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    args, kwargs
        What it is called with.
    loss : callable
        From its output to the loss.
    rules : dict
        Patterns for tensor parallelism over ``tp``; empty where the model is only divided by its batch.
    batch : tuple of str, optional
        The inputs whose dim 0 is the batch; by default all that are as long as the first one.
    """

    model: nn.Module
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    loss: Callable[[Any], torch.Tensor] = its_loss
    rules: Mapping[str, object] = field(default_factory=dict)
    batch: tuple[str, ...] = ()

    def trace(self) -> sl.TracedGraph:
        """The traced training step."""
        return sl.trace(self.model, *self.args, kwargs=dict(self.kwargs), loss=self.loss)

    def batch_along(self, axis: str) -> str | tuple[str, ...]:
        """The ``batch`` argument of `expand`."""
        return (axis, *self.batch) if self.batch else axis


def columns_then_rows(columns: Sequence[str], rows: Sequence[str]) -> dict[str, object]:
    """Matrices that are divided by columns, followed by ones that are divided by rows."""
    return sl.colwise(*columns, axis="tp") | sl.rowwise(*rows, axis="tp")
