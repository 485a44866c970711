"""DTensors taken apart and made without autograd's way round: in a training step it costs more than small operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch.distributed.tensor.placement_types import Placement

__all__ = ["local_of", "with_local"]


def local_of(tensor: DTensor) -> torch.Tensor:
    """The local tensor itself, without a gradient; `DTensor.to_local` makes a view for autograd."""
    return tensor._local_tensor


def with_local(tensor: DTensor, local: torch.Tensor, placements: Sequence[Placement]) -> DTensor:
    """A DTensor of the global shape of another, in these placements."""
    spec = tensor._spec
    if spec.placements != placements:
        spec = DTensorSpec(spec.mesh, tuple(placements), tensor_meta=spec.tensor_meta)
    return DTensor(local, spec, requires_grad=False)
