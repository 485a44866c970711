"""Random meshes and layouts, small enough to look at every rank."""

from __future__ import annotations

import math
from itertools import accumulate

import torch
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from spmd_lab import Layout, Mesh

AXES = ("dp", "tp", "cp", "pp")
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.quint8)
REDUCTIONS = ("sum", "avg", "max", "min", "product")
MAX_RANKS = 36


@st.composite
def meshes(draw: st.DrawFn, min_axes: int = 1) -> Mesh:
    """Up to four axes, in any order, of up to five ranks each."""
    names = draw(st.lists(st.sampled_from(AXES), min_size=min_axes, max_size=4, unique=True))
    sizes = draw(st.lists(st.integers(1, 5), min_size=len(names), max_size=len(names)))
    fitting = [
        size if ranks <= MAX_RANKS else 1 for size, ranks in zip(sizes, accumulate(sizes, int.__mul__), strict=True)
    ]
    return Mesh(**dict(zip(names, fitting, strict=True)))


def placements(ndim: int) -> st.SearchStrategy[Placement]:
    """Any placement of a tensor of so many dims; strided ones with any split factor."""
    always = st.just(Replicate()) | st.sampled_from(REDUCTIONS).map(Partial)
    if ndim == 0:
        return always
    dims = st.integers(0, ndim - 1)
    return (
        always
        | dims.map(Shard)
        | st.builds(lambda dim, sf: _StridedShard(dim, split_factor=sf), dims, st.integers(1, 9))
    )


@st.composite
def layouts(draw: st.DrawFn, max_dims: int = 3, min_dims: int = 0, longest: int = 26, min_axes: int = 1) -> Layout:
    """Any layout: even and uneven, ordered and strided, pending."""
    mesh = draw(meshes(min_axes))
    shape = draw(st.lists(st.integers(0, longest), min_size=min_dims, max_size=max_dims))
    while math.prod(shape) > 3000:
        shape.pop()
    placed = draw(st.lists(placements(len(shape)), min_size=mesh.ndim, max_size=mesh.ndim))
    return Layout(shape, draw(st.sampled_from(DTYPES)), mesh, placed)


@st.composite
def ordered_layouts(draw: st.DrawFn) -> Layout:
    """Dims that are divided over several axes, in any order of these."""
    mesh = draw(meshes(min_axes=2))
    shape = draw(st.lists(st.integers(0, 13), min_size=1, max_size=3))
    order = draw(st.permutations(mesh.axes))
    dims = draw(st.lists(st.integers(0, len(shape) - 1), min_size=mesh.ndim, max_size=mesh.ndim))
    over = ["".join(f"/{axis}" for axis, at in zip(order, dims, strict=True) if at == dim) for dim in range(len(shape))]
    return Layout.parse(" ".join(f"d{dim}{axes}" for dim, axes in enumerate(over)), mesh, shape, torch.float32)
