"""Reductions inside a local program: what every rank has a part of, carried out over one mesh axis after the other."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.distributed.tensor import Partial, Replicate

from spmd_lab.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch import fx

    from spmd_lab.local_graph import LocalGraphBuilder

__all__ = ["Moments", "all_reduced", "axes_dividing", "global_moments", "reduced_layout", "wide_dtype"]

aten = torch.ops.aten


class Moments(NamedTuple):
    """The mean over some dims, and the sum of squared distances from it; the dims are kept, with size 1."""

    mean: fx.Node
    squares: fx.Node


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype to add up in: at least float32, as the kernels do."""
    return torch.promote_types(dtype, torch.float32)


def axes_dividing(layout: Layout, dims: Collection[int]) -> list[str]:
    """The mesh axes that divide any of the dims, in the order of the mesh."""
    found = {split.axis for dim in dims for split in layout.splits(dim)}
    return [axis for axis in layout.mesh.axes if axis in found]


def reduced_layout(layout: Layout, dims: Collection[int], dtype: torch.dtype) -> Layout:
    """The layout of a tensor after a reduction over all of some dims, which are kept with size 1."""
    axes = axes_dividing(layout, dims)
    return Layout(
        [1 if dim in dims else size for dim, size in enumerate(layout.global_shape)],
        dtype,
        layout.mesh,
        [
            Replicate() if axis in axes else placement
            for axis, placement in zip(layout.mesh.axes, layout.placements, strict=True)
        ],
    )


def all_reduced(
    builder: LocalGraphBuilder, x: fx.Node, axes: Sequence[str], layout: Layout, kind: str = "sum"
) -> fx.Node:
    """Reduce over each axis in turn.

    Parameters
    ----------
    x : torch.fx.Node
        This rank's part.
    axes : sequence of str
        The axes over which each rank has a part.
    layout : Layout
        Of the result.
    kind : str
        The reduction.
    """
    for done in range(len(axes)):
        have, need = (_pending_over(layout, axes[start:], kind) for start in (done, done + 1))
        x = builder.all_reduce(x, axes[done], have, need)
    return x


def _pending_over(layout: Layout, axes: Sequence[str], kind: str) -> Layout:
    return layout.with_placements(
        [
            Partial(kind) if axis in axes else placement
            for axis, placement in zip(layout.mesh.axes, layout.placements, strict=True)
        ]
    )


def global_moments(builder: LocalGraphBuilder, x: fx.Node, layout: Layout, dims: Sequence[int]) -> Moments:
    """The moments of the whole tensor, from those of shards, by the formula of Chan: nothing cancels.

    Parameters
    ----------
    x : torch.fx.Node
        This rank's shard in a wide dtype; an empty one has been given elements.
    layout : Layout
        Of the whole tensor.
    dims : sequence of int
        The dims to reduce.
    """
    axes = axes_dividing(layout, dims)
    total = math.prod(layout.global_shape[dim] for dim in dims)
    own = math.prod(builder.local_shape(layout)[dim] for dim in dims)
    reduced = reduced_layout(layout, dims, wide_dtype(layout.dtype))
    variance, own_mean = _var_mean(builder, x, dims)
    weighted = builder.call(aten.mul.Tensor, own_mean, own / total if total else math.nan)
    mean = all_reduced(builder, weighted, axes, reduced)
    distance = builder.call(aten.abs.default, builder.call(aten.sub.Tensor, own_mean, mean))
    between = builder.call(aten.mul.Tensor, distance, distance)
    squares = builder.call(aten.mul.Tensor, builder.call(aten.add.Tensor, variance, between), own)
    return Moments(mean, all_reduced(builder, squares, axes, _real(reduced)))


def _var_mean(builder: LocalGraphBuilder, x: fx.Node, dims: Sequence[int]) -> tuple[fx.Node, fx.Node]:
    both = builder.call(aten.var_mean.correction, x, list(dims), correction=0, keepdim=True)
    return builder.call(operator.getitem, both, 0), builder.call(operator.getitem, both, 1)


def _real(layout: Layout) -> Layout:
    """The same layout of the absolute values."""
    return Layout(layout.global_shape, layout.dtype.to_real(), layout.mesh, layout.placements)
