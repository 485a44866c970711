"""How large an error may be: judged by the noise that the single-device program shows when its operands are shaken.

An operator's rounding error is in proportion to what it summed, not to what came out: a gradient that is zero by
symmetry is the noise of summands that are not. So noise is measured, not modelled: every operand is changed by a few
units in its last place, the operator runs again, and what comes out differs by as much as rounding could make it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spmd_lab.prove.pieces import exact, is_inexact

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["noise_of", "scaled_error", "shaken", "tolerance"]

_SHAKE = 4.0
"""By how many units in its last place an operand is shaken."""
_MARGIN = 32.0
"""How many times the noise an error may be."""
_RANGE = 1e4
"""How much larger than its small elements the ordinary elements of a tensor are, at most."""
_LOOKED_AT = 100_000
"""How many elements are looked at to find out how large the small ones are."""


def tolerance(dtype: torch.dtype) -> float:
    """The largest scaled error that is still rounding; 0 for a dtype that is not rounded.

    Examples
    --------
    >>> f"{tolerance(torch.float32):.1e}", tolerance(torch.int64)
    ('3.8e-06', 0.0)
    """
    return _MARGIN * torch.finfo(dtype).eps if is_inexact(dtype) else 0.0


def shaken(value: torch.Tensor, scale: torch.Tensor | None, generator: torch.Generator) -> torch.Tensor:
    """A tensor, each element moved towards zero by a few units in its last place, some more than others.

    Parameters
    ----------
    value : torch.Tensor
        Any tensor; one that is not rounded is returned as it is.
    scale : torch.Tensor or None
        The magnitude by which to shake, where it is not that of the value.
    generator : torch.Generator
        Where the coins come from; on the device of the value.
    """
    if not is_inexact(value.dtype) or not value.numel():
        return value
    coins = torch.randint(0, 2, value.shape, generator=generator, device=value.device)
    amount = (coins + 0.5) * (_SHAKE * torch.finfo(value.dtype).eps)
    if scale is None:
        return (value * (1 - amount)).to(value.dtype)
    return (value - value.sgn() * scale * amount).to(value.dtype)


def noise_of(expected: torch.Tensor, samples: Sequence[torch.Tensor], scale: torch.Tensor | None = None) -> torch.Tensor:
    """The size of rounding errors, element by element.

    Parameters
    ----------
    expected : torch.Tensor
        The value on one device.
    samples : sequence of torch.Tensor
        The same value, computed from shaken operands.
    scale : torch.Tensor or None
        The magnitude of the pieces that were reduced to it, where some were.
    """
    info = torch.finfo(expected.dtype)
    size = _finite(exact(expected).abs())
    noise = size * info.eps + info.tiny
    if scale is not None:
        noise = noise + _finite(scale) * info.eps
    if samples:
        moved = torch.stack([_finite((exact(sample) - exact(expected)).abs()) for sample in samples])
        usual = _ordinary(moved, size).square().mean().sqrt() if moved.numel() else moved.sum()
        noise = noise + (moved.amax(0) + usual) / _SHAKE
    return noise


def scaled_error(got: torch.Tensor, expected: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Errors in proportion to the scale of what was computed, as relative errors are in proportion to a value.

    Infinite where one value is finite or a number and the other is not.
    """
    one, other = exact(got), exact(expected)
    same = (one == other) | (one.isnan() & other.isnan())
    error = (one - other).abs() / noise * torch.finfo(expected.dtype).eps
    comparable = one.isfinite() & other.isfinite()
    return torch.where(same, 0.0, torch.where(comparable, error, torch.inf))


def _finite(values: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def _ordinary(moved: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """Leave out numbers that stand for infinity, as masks have them: they say nothing of the others' noise."""
    some = size.flatten()[:: size.numel() // _LOOKED_AT + 1]
    some = some[some > 0]
    if not some.numel():
        return moved
    small = some.kthvalue(some.numel() // 10 + 1).values
    return moved * (size <= small * _RANGE)
