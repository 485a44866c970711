"""What a loss closes over: whole tensors that may be others in the next call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from spmd_lab.trace.closures import reachable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["closed_over"]


def closed_over(loss: Callable[[Any], torch.Tensor] | None) -> dict[str, torch.Tensor]:
    """The tensors that a loss closes over now, by the names that its code knows them under; parameters left out."""
    if loss is None:
        return {}
    return {
        name: value
        for name, value in reachable(None, loss)
        if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
    }
