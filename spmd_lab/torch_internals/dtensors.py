"""DTensors taken apart and made without autograd's way round: in a training step it costs more than small operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    import torch

__all__ = ["local_of", "with_local"]


def local_of(tensor: DTensor) -> torch.Tensor:
    """The local tensor itself, without a gradient; `DTensor.to_local` makes a view for autograd."""
    return tensor._local_tensor


def with_local(tensor: DTensor, local: torch.Tensor) -> DTensor:
    """A DTensor that lies as another, of another local tensor."""
    return DTensor(local, tensor._spec, requires_grad=False)
