"""Compares what ranks hold with what they should hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from spmd_lab.prove.pieces import Whole, assemble, is_inexact, replicas, same_values
from spmd_lab.prove.tolerance import scaled_error, tolerance

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from spmd_lab.layout import Layout
    from spmd_lab.prove.pieces import Replica

__all__ = ["Fault", "Verdict", "judge"]


@dataclass(frozen=True)
class Fault:
    """One element that is wrong, or one tensor that is not what its layout says.

    Parameters
    ----------
    rank : int or None
        The first rank that is wrong; of a pending reduction, the first of those whose pieces were reduced.
    index : tuple of int or None
        The element, in the whole tensor; None where the tensor as a whole is wrong.
    expected, got : object
        Its value, or what the tensor should be and is.
    reason : str
        In words.
    """

    rank: int | None
    index: tuple[int, ...] | None
    expected: object
    got: object
    reason: str


class Verdict(NamedTuple):
    """What came out of comparing one value on all ranks.

    Parameters
    ----------
    whole : Whole or None
        The value as the ranks hold it, put together; None where their tensors do not fit together.
    max_abs_error, max_scaled_error : float
        The largest errors of all elements.
    fault : Fault or None
        Where it is wrong, if it is.
    """

    whole: Whole | None
    max_abs_error: float
    max_scaled_error: float
    fault: Fault | None


def judge(
    expected: torch.Tensor,
    layout: Layout,
    tensors: Sequence[torch.Tensor],
    ranks: Collection[int],
    noise: Callable[[torch.Tensor | None], torch.Tensor],
) -> Verdict:
    """Compare what each rank holds with its part of a whole tensor.

    Parameters
    ----------
    expected : torch.Tensor
        The whole tensor.
    layout : Layout
        How it should lie on the mesh.
    tensors : sequence of torch.Tensor
        What each rank holds.
    ranks : collection of int
        The ranks to report on.
    noise : callable
        Gives the size of rounding errors, element by element; takes the magnitude of the reduced pieces, if any. It
        is only asked where values differ.
    """
    misfit = _misfit(expected, layout, tensors, ranks)
    if misfit is not None:
        return Verdict(None, float("inf"), float("inf"), misfit)
    first, *others = replicas(layout)
    whole = assemble(layout, tensors, first)
    verdict = Verdict(whole, 0.0, 0.0, None)
    if not set(ranks).isdisjoint(_ranks_of(first)):
        verdict = _compared(expected, layout, whole, first, ranks, noise)
    for copy in others:
        if set(ranks).isdisjoint(_ranks_of(copy)) or _same_pieces(tensors, first, copy):
            continue
        other = _compared(expected, layout, assemble(layout, tensors, copy), copy, ranks, noise)
        verdict = Verdict(
            whole,
            max(verdict.max_abs_error, other.max_abs_error),
            max(verdict.max_scaled_error, other.max_scaled_error),
            _earlier(verdict.fault, other.fault),
        )
    return verdict


def _misfit(
    expected: torch.Tensor, layout: Layout, tensors: Sequence[torch.Tensor], ranks: Collection[int]
) -> Fault | None:
    """A rank whose tensor has another shape or dtype than its layout says."""
    for rank, tensor in enumerate(tensors):
        shape, dtype = layout.local_shape(rank), expected.dtype
        if not isinstance(tensor, torch.Tensor):
            return Fault(rank, None, f"a tensor of shape {list(shape)}", repr(tensor), "a rank has no tensor here")
        if tuple(tensor.shape) != shape:
            return Fault(rank, None, list(shape), list(tensor.shape), f"the local shape is not that of {layout}")
        if tensor.dtype != dtype and rank in ranks:
            return Fault(rank, None, dtype, tensor.dtype, "the dtype differs")
    return None


def _same_pieces(tensors: Sequence[torch.Tensor], one: Replica, other: Replica) -> bool:
    pairs = zip(_ranks_of(one), _ranks_of(other), strict=True)
    return all(same_values(tensors[left], tensors[right]) for left, right in pairs)


def _ranks_of(copy: Replica) -> tuple[int, ...]:
    return tuple(rank for members in copy for rank in members)


def _earlier(one: Fault | None, other: Fault | None) -> Fault | None:
    if one is None or other is None:
        return one or other
    return other if (other.rank or 0) < (one.rank or 0) else one


def _compared(
    expected: torch.Tensor,
    layout: Layout,
    whole: Whole,
    copy: Replica,
    ranks: Collection[int],
    noise: Callable[[torch.Tensor | None], torch.Tensor],
) -> Verdict:
    """Compare one copy, put together, with the whole tensor."""
    got = whole.value
    if same_values(got, expected):
        return Verdict(whole, 0.0, 0.0, None)
    if is_inexact(expected.dtype):
        scaled = scaled_error(got, expected, noise(whole.scale))
    else:
        scaled = torch.where(got == expected, 0.0, torch.inf)
    wide = torch.complex128 if expected.is_complex() else torch.float64
    differences = (got.to(wide) - expected.to(wide)).abs().nan_to_num(nan=0.0, posinf=torch.inf)
    fault = _fault(expected, layout, got, scaled, copy, ranks)
    return Verdict(whole, float(differences.max()), float(scaled.max()), fault)


def _fault(
    expected: torch.Tensor,
    layout: Layout,
    got: torch.Tensor,
    scaled: torch.Tensor,
    copy: Replica,
    ranks: Collection[int],
) -> Fault | None:
    """The worst element of the first rank that has one beyond the tolerance."""
    if not bool((scaled > tolerance(expected.dtype)).any()):
        return None
    positions = torch.arange(scaled.numel(), device=scaled.device).reshape(scaled.shape)
    for rank, members in sorted((members[0], members) for members in copy):
        if set(ranks).isdisjoint(members):
            continue
        where = layout.slices(rank)
        errors = scaled[where]
        if errors.numel() and float(errors.max()) > tolerance(expected.dtype):
            flat = int(positions[where].flatten()[int(errors.flatten().argmax())])
            index = tuple(int(each) for each in torch.unravel_index(torch.tensor(flat), scaled.shape))
            return Fault(rank, index, expected[index].item(), got[index].item(), _reason(layout, members))
    return None


def _reason(layout: Layout, members: tuple[int, ...]) -> str:
    if len(members) == 1:
        return "the value differs"
    kinds = "; ".join(f"{kind} over {axis}" for axis, kind in layout.pending.items())
    return f"the pieces of ranks {', '.join(map(str, members))}, reduced ({kinds}), differ"
