"""How large an error may be: judged by the noise that the single-device program shows when its operands are shaken.

An operator's rounding error is in proportion to what it summed, not to what came out: a gradient that is zero by
symmetry is the noise of summands that are not. So noise is measured, not modelled: every operand is changed by a few
units in its last place, the operator runs again, and what comes out differs by as much as rounding could make it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spmd_lab.prove.pieces import is_inexact

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Shaker", "noise_of", "scaled_error", "tolerance"]

_SHAKE = 4.0
"""By how many units in its last place an operand is shaken."""
_MARGIN = 32.0
"""How many times the noise an error may be."""
_RANGE = 1e4
"""How much larger than its small elements the ordinary elements of a tensor are, at most."""
_LOOKED_AT = 20_000
"""How many elements are looked at to find out how large the small ones are."""


def tolerance(dtype: torch.dtype) -> float:
    """The largest scaled error that is still rounding; 0 for a dtype that is not rounded.

    Examples
    --------
    >>> f"{tolerance(torch.float32):.1e}", tolerance(torch.int64)
    ('3.8e-06', 0.0)
    """
    return _MARGIN * torch.finfo(dtype).eps if is_inexact(dtype) else 0.0


class Shaker:
    """Moves each element of a tensor towards zero by a few units in its last place, some more than others.

    Parameters
    ----------
    seed : int
        Another seed shakes otherwise.

    Examples
    --------
    >>> moved = Shaker(0)(torch.ones(1000))
    >>> bool((moved < 1).all()), bool((moved > 1 - 1e-6).all())
    (True, True)
    """

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._factors: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}

    def __call__(self, value: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        """Shake a tensor by units of its own size, or of ``scale``; one that is not rounded stays as it is."""
        if not is_inexact(value.dtype) or not value.numel():
            return value
        factors = self._taken(value)
        if scale is None:
            return value * factors
        away = torch.where(
            value == 0, torch.ones_like(value), value.sgn()
        )  # pieces that cancel are rounded all the same
        return value - (away * (_finite(scale) * (1 - factors))).to(value.dtype)

    def _taken(self, value: torch.Tensor) -> torch.Tensor:
        """One factor per element, from another place of one long row each time."""
        count, spare = value.numel(), 4096
        dtype = value.dtype.to_real()
        row = self._factors.get((dtype, value.device))
        if row is None or row.numel() < count + spare:
            units = torch.randint(-2, 3, (count + spare,), generator=self._generator, dtype=torch.int8).double()
            row = (1 - (_SHAKE + units) * torch.finfo(dtype).eps).to(dtype).to(value.device)
            self._factors[dtype, value.device] = row
        start = int(torch.randint(0, spare, (), generator=self._generator))
        return row[start : start + count].view(value.shape)


def noise_of(
    expected: torch.Tensor, samples: Sequence[torch.Tensor], scale: torch.Tensor | None = None
) -> torch.Tensor:
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
    wide = _wide(expected)
    size = _finite(wide.abs())
    noise = size * info.eps + info.tiny
    if scale is not None:
        noise += _finite(scale.to(size.dtype)) * info.eps
    if samples:
        moved = torch.stack([_finite((_wide(sample) - wide).abs()) for sample in samples])
        noise += (moved.amax(0) + _usual(moved, size)) / _SHAKE
    return noise


def scaled_error(got: torch.Tensor, expected: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Errors in proportion to the scale of what was computed, as relative errors are in proportion to a value.

    Infinite where one value is finite or a number and the other is not.
    """
    one, other = _wide(got), _wide(expected)
    same = (one == other) | (one.isnan() & other.isnan())
    error = ((one - other).abs() / noise * torch.finfo(expected.dtype).eps).nan_to_num(nan=torch.inf, posinf=torch.inf)
    return error.masked_fill(same, 0.0)


def _wide(values: torch.Tensor) -> torch.Tensor:
    """The same values in at least single precision: enough for the difference of two of them."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _finite(values: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def _usual(moved: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """How far elements usually move, whatever single ones do by chance.

    Numbers that stand for infinity, as masks have them, are left out: they say nothing of the others' noise.
    """
    some = size.flatten()[:: size.numel() // _LOOKED_AT + 1]
    some = some[some > 0]
    if some.numel():
        small = some.kthvalue(some.numel() // 10 + 1).values
        moved = moved * (size <= small * _RANGE)
    return moved.square().mean().sqrt() if moved.numel() else moved.sum()
