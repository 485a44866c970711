"""Which operators write into their arguments."""

from __future__ import annotations

from torch._ops import OpOverload

__all__ = ["is_mutating"]


def is_mutating(target: object) -> bool:
    """Whether a call of ``target`` writes into one of its arguments; False for what is no operator of torch.

    Examples
    --------
    >>> import torch
    >>> is_mutating(torch.ops.aten.add_.Tensor), is_mutating(torch.ops.aten.add.Tensor), is_mutating(len)
    (True, False, False)
    """
    return isinstance(target, OpOverload) and bool(target._schema.is_mutable)
