"""Which pending reductions pass from one dtype to another: those for which it does not matter what comes first."""

from __future__ import annotations

import torch

__all__ = ["passes_cast"]


def passes_cast(kind: str, given: torch.dtype, made: torch.dtype) -> bool:
    """Whether pieces may be cast before they are reduced.

    Rounded pieces do not add up to the rounded sum, and integers wrap around: where a cast loses anything, the
    reduction comes first, though it sends the wider dtype then. The largest of rounded numbers is the largest, rounded.

    Parameters
    ----------
    kind : str
        The reduction.
    given, made : torch.dtype
        Of the pieces, and of what they are cast to.

    Examples
    --------
    >>> passes_cast("sum", torch.bfloat16, torch.float32), passes_cast("sum", torch.float32, torch.bfloat16)
    (True, False)
    >>> passes_cast("max", torch.float32, torch.bfloat16), passes_cast("max", torch.int64, torch.int8)
    (True, False)
    """
    if given == made:
        return True
    if kind in ("max", "min"):
        return made.is_floating_point or _holds_integers(made, given)
    return _holds_rounded(made, given)


def _holds_integers(made: torch.dtype, given: torch.dtype) -> bool:
    """Whether integers of one dtype are also ones of another."""
    if torch.bool in (made, given) or given.is_floating_point:
        return False
    wide, narrow = torch.iinfo(made), torch.iinfo(given)
    return wide.min <= narrow.min and narrow.max <= wide.max


def _holds_rounded(made: torch.dtype, given: torch.dtype) -> bool:
    """Whether floating or complex numbers of one dtype are also ones of another, part by part."""
    if not all(each.is_floating_point or each.is_complex for each in (made, given)):
        return False
    wide, narrow = torch.finfo(made), torch.finfo(given)
    return wide.eps <= narrow.eps and narrow.max <= wide.max
