"""Calls whose shapes are known beforehand, though torch asks for data on the way, written so that it does not.

Torch differentiates what is written at positions by listing the elements that are meant, and how many there are depends
on data; their sum does not. It looks at the data of a covariance only to warn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from spmd_lab.torch_internals.checks import assert_of_data

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["call_traceably"]


def call_traceably(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function of torch's, or what does the same where torch would ask for data."""
    instead = _INSTEAD.get(func)
    made = None if instead is None else instead(*args, **kwargs)
    return func(*args, **kwargs) if made is None else made


# --- written where a mask says so -----------------------------------------------------------------


def _set_item(x: torch.Tensor, index: Any, value: Any) -> torch.Tensor | None:
    """``x[index] = value``."""
    parts = list(index) if isinstance(index, tuple) else [index]
    masks = [place for place, part in enumerate(parts) if _is_mask(part)]
    basic = [part for part in parts if part is None or part is ... or type(part) in (int, slice)]
    if len(masks) != 1 or len(basic) != len(parts) - 1 or not isinstance(value, torch.Tensor):
        return None
    (at,), mask = masks, parts[masks[0]]
    parts[at : at + 1] = [slice(None)] * mask.ndim
    rest = x.ndim - sum(type(part) in (int, slice) for part in parts)
    before = sum(rest if part is ... else type(part) is not int for part in parts[:at])
    view = x[tuple(parts)] if basic else x
    fitted = _fitted(view, before, mask, value.to(x.dtype))
    return None if fitted is None else view.copy_(torch.where(*fitted, view))


def _index_put(
    input: torch.Tensor,  # noqa: A002 - here and below: as torch calls it
    indices: Sequence[torch.Tensor],
    values: torch.Tensor,
    accumulate: bool = False,
) -> torch.Tensor | None:
    fitted = _fitted(input, 0, indices[0], values) if len(indices) == 1 and _is_mask(indices[0]) else None
    if fitted is None:
        return None
    return input + torch.where(*fitted, values.new_zeros(())) if accumulate else torch.where(*fitted, input)


def _is_mask(part: object) -> TypeGuard[torch.Tensor]:
    return isinstance(part, torch.Tensor) and part.dtype is torch.bool and part.ndim > 0


def _fitted(
    x: torch.Tensor, dim: int, mask: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """A mask of the dims from one on, and values for what it selects, so that both stretch to a tensor.

    None where it takes data to know which value goes where, or where something does not fit.
    """
    after = x.ndim - dim - mask.ndim
    selected = values.ndim - after - 1
    if x.shape[dim : dim + mask.ndim] != mask.shape or values.dtype != x.dtype or values.ndim > x.ndim:
        return None
    if selected >= 0:
        if values.shape[selected] != 1:
            return None
        values = values.reshape(*values.shape[:selected], *[1] * mask.ndim, *values.shape[selected + 1 :])
    return mask.reshape(*mask.shape, *[1] * after), values


# --- written at positions -------------------------------------------------------------------------


def _index_fill(
    input: torch.Tensor,  # noqa: A002
    dim: int,
    index: torch.Tensor,
    value: Any,
) -> torch.Tensor | None:
    if not (isinstance(value, torch.Tensor) and value.requires_grad):
        return None
    sizes = [1] * input.ndim
    sizes[dim : dim + 1 or None] = input.shape[dim : dim + 1 or None]
    chosen = torch.zeros(sizes, dtype=torch.bool, device=input.device).index_fill(dim, index, True)
    return torch.where(chosen, value.to(input.dtype), input)


def _in_place(changed: Callable[..., torch.Tensor | None]) -> Callable[..., torch.Tensor | None]:
    """The function that writes what another returns into the first of its arguments."""

    def write(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor | None:  # noqa: A002
        made = changed(input, *args, **kwargs)
        return None if made is None else input.copy_(made)

    return write


# --- statistics -----------------------------------------------------------------------------------


def _cov(
    input: torch.Tensor,  # noqa: A002
    *,
    correction: int = 1,
    fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> torch.Tensor:
    rows = input if input.ndim > 1 else input.reshape(1, -1)
    given = [each for each in (fweights, aweights) if each is not None]
    if not given:
        centered = rows - rows.mean(1, keepdim=True)
        return (centered @ centered.mT.conj() / max(rows.shape[1] - correction, 0)).squeeze()
    weights = torch.stack(torch.broadcast_tensors(*given)).prod(0) if len(given) > 1 else given[0]
    total = weights.sum()
    assert_of_data((weights >= 0).all() & (total != 0), "weights of a covariance are no weights")
    spent = correction if aweights is None else correction * (weights * aweights).sum() / total
    centered = rows - (rows * weights).sum(1, keepdim=True) / total
    return (centered @ (centered * weights).mT.conj() / (total - spent).clamp(min=0)).squeeze()


def _corrcoef(input: torch.Tensor) -> torch.Tensor:  # noqa: A002
    covariance = _cov(input)
    if covariance.ndim == 0:
        return covariance / covariance
    deviation = covariance.diagonal().real.sqrt()
    found = covariance / deviation[:, None] / deviation
    if found.is_complex():
        return torch.complex(found.real.clamp(-1, 1), found.imag.clamp(-1, 1))
    return found.clamp(-1, 1)


_INSTEAD: dict[Callable[..., Any], Callable[..., torch.Tensor | None]] = {
    torch.Tensor.__setitem__: _set_item,
    torch.Tensor.index_put: _index_put,
    torch.Tensor.index_put_: _in_place(_index_put),
    torch.index_put: _index_put,
    torch.index_put_: _in_place(_index_put),
    torch.Tensor.index_fill: _index_fill,
    torch.Tensor.index_fill_: _in_place(_index_fill),
    torch.index_fill: _index_fill,
    torch.Tensor.cov: _cov,
    torch.cov: _cov,
    torch.Tensor.corrcoef: _corrcoef,
    torch.corrcoef: _corrcoef,
}
"""What returns None has torch do it itself."""
