"""Cutting a whole tensor into what ranks hold, and putting it together again: by `Layout.slices` alone."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch

from spmd_lab.prove.collectives import combine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spmd_lab.layout import Layout

__all__ = ["Whole", "assemble", "cut", "exact", "is_inexact", "replicas", "same_values"]

Replica = tuple[tuple[int, ...], ...]
"""One full copy of a tensor: for each different shard, the ranks that hold it; several where a reduction is pending."""


class Whole(NamedTuple):
    """A tensor put together from what ranks hold.

    Parameters
    ----------
    value : torch.Tensor
        The whole tensor, in its own dtype.
    scale : torch.Tensor or None
        Where pieces were reduced, the magnitude of what was reduced, element by element; None where it is that of
        the value itself.
    """

    value: torch.Tensor
    scale: torch.Tensor | None = None


@lru_cache(maxsize=4096)
def replicas(layout: Layout) -> tuple[Replica, ...]:
    """The full copies that the ranks of a mesh hold, in the order of their first ranks.

    Examples
    --------
    >>> from spmd_lab import Layout, Mesh
    >>> replicas(Layout.parse("f32[4/dp]{sum: tp}", Mesh(pp=2, dp=2, tp=2)))
    (((0, 1), (2, 3)), ((4, 5), (6, 7)))
    """
    mesh = layout.mesh
    divided = {split.axis for dim in range(len(layout.global_shape)) for split in layout.splits(dim)}
    copied = [position for position, axis in enumerate(mesh.axes) if axis not in divided and axis not in layout.pending]
    shards = [position for position, axis in enumerate(mesh.axes) if axis in divided]
    reduced = [position for position, axis in enumerate(mesh.axes) if axis in layout.pending]
    counts = [math.prod(mesh.shape[position] for position in part) for part in (copied, shards, reduced)]
    ranks = torch.arange(mesh.size).reshape(mesh.shape).permute(*copied, *shards, *reduced).reshape(counts)
    return tuple(tuple(tuple(members) for members in copy) for copy in ranks.tolist())


def cut(value: torch.Tensor, layout: Layout, rank: int) -> torch.Tensor:
    """What a rank holds of a whole tensor: its own memory, its strides in the order of the whole one's.

    Examples
    --------
    >>> from spmd_lab import Layout, Mesh
    >>> cut(torch.arange(5), Layout.parse("i64[5/dp]", Mesh(dp=4)), rank=1)
    tensor([2, 3])
    """
    return value[layout.slices(rank)].clone()


def assemble(layout: Layout, tensors: Sequence[torch.Tensor], copy: Replica, *, as_ranks_do: bool = False) -> Whole:
    """Put one full copy of a tensor together.

    Parameters
    ----------
    layout : Layout
        How it lies on the mesh; the tensors have its local shapes.
    tensors : sequence of torch.Tensor
        What each rank holds.
    copy : tuple of tuple of int
        The ranks that hold this copy, one of `replicas`.
    as_ranks_do : bool
        Whether to reduce pieces in their own dtype, with the rounding that ranks have too, and not exactly.
    """
    kinds = list(layout.pending.values())
    sizes = [layout.mesh.axis_size(axis) for axis in layout.pending]
    first = tensors[copy[0][0]]
    if len(copy) == 1 and not kinds:
        return Whole(first)
    value = first.new_empty(layout.global_shape)
    scale = value.new_empty(layout.global_shape, dtype=torch.float64) if kinds and is_inexact(value.dtype) else None
    for members in copy:
        where = layout.slices(members[0])
        held = [exact(tensors[rank]) for rank in members] if kinds else [tensors[members[0]]]
        pieces = [tensors[rank] for rank in members] if as_ranks_do else held
        value[where] = _reduced(kinds, sizes, pieces).to(value.dtype)
        if scale is not None:
            scale[where] = _reduced(_widened(kinds), sizes, [piece.abs() for piece in held])
    return Whole(value, scale)


def _reduced(kinds: list[str], sizes: list[int], pieces: list[torch.Tensor]) -> torch.Tensor:
    """Reduce over the innermost axis first."""
    if not kinds:
        return pieces[0]
    groups = [pieces[start : start + sizes[-1]] for start in range(0, len(pieces), sizes[-1])]
    return _reduced(kinds[:-1], sizes[:-1], [combine(kinds[-1], group) for group in groups])


def _widened(kinds: list[str]) -> list[str]:
    """The reductions that give the magnitude of what is reduced, which is what errors are in proportion to."""
    return ["max" if kind == "min" else kind for kind in kinds]


def is_inexact(dtype: torch.dtype) -> bool:
    """Whether values of a dtype are rounded."""
    return dtype.is_floating_point or dtype.is_complex


def exact(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in a dtype in which a few of them can be added with next to no rounding."""
    if tensor.dtype.is_complex:
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.dtype.is_floating_point else tensor


def comparable(value: torch.Tensor) -> torch.Tensor:
    """The same values in a dtype that torch can compare."""
    wider = {torch.complex32: torch.complex64, torch.float8_e4m3fn: torch.float32, torch.float8_e5m2: torch.float32}
    return value.to(wider[value.dtype]) if value.dtype in wider else value


def same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same values, NaN in the same places included."""
    if one is other:
        return True
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    one, other = comparable(one), comparable(other)
    if torch.equal(one, other):
        return True
    return is_inexact(one.dtype) and bool(((one == other) | (one.isnan() & other.isnan())).all())
