"""Placements that torch keeps private."""

from __future__ import annotations

from torch.distributed.tensor import Partial
from torch.distributed.tensor.placement_types import _StridedShard as StridedShard

__all__ = ["StridedShard", "is_plain_partial"]


def is_plain_partial(placement: object) -> bool:
    """Whether a placement is a pending reduction and nothing more (torch has masked and norm kinds too)."""
    return type(placement) is Partial
