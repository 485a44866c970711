"""One notation for a tensor on a mesh, as it is printed; `spmd_lab.parsing` reads it back.

``f32[16/dp, 64]`` divides dim 0 over axis dp; ``16/dp/tp`` over dp first, then each piece over tp;
``(64 16/tp)`` is a flattened dim whose inner factor is divided; ``{sum: tp}`` is a pending sum.
Where no order of axes and no factors describe a strided placement, ``10/tp~3`` gives its split factor.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from spmd_lab.elements import split_order

if TYPE_CHECKING:
    from spmd_lab.elements import Split
    from spmd_lab.layout import Layout

__all__ = ["DTYPES", "Factor", "dtype_name", "format_dim", "format_layout", "format_local_sizes", "format_pending"]

DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
    "u64": torch.uint64, "u32": torch.uint32, "u16": torch.uint16, "u8": torch.uint8,
    "bool": torch.bool, "c128": torch.complex128, "c64": torch.complex64, "c32": torch.complex32,
    "f8e4m3fn": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Factor(NamedTuple):
    """One factor of a dim, and the axes that divide it, outermost first."""

    size: int
    axes: tuple[str, ...]


def dtype_name(dtype: torch.dtype) -> str:
    """The short name of a dtype: ``f32``, ``i64``, ``bool``."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))


def format_layout(layout: Layout) -> str:
    """The notation of a layout, as `Layout.parse` reads it back."""
    dims = ", ".join(format_dim(size, layout.splits(dim)) for dim, size in enumerate(layout.global_shape))
    return f"{dtype_name(layout.dtype)}[{dims}]{format_pending(layout.pending)}"


def format_pending(pending: dict[str, str]) -> str:
    """``{sum: dp, tp}``: the axes of each kind of pending reduction."""
    if not pending:
        return ""
    kinds = {kind: [axis for axis, found in pending.items() if found == kind] for kind in pending.values()}
    return "{" + "; ".join(f"{kind}: {', '.join(axes)}" for kind, axes in kinds.items()) + "}"


def format_local_sizes(layout: Layout) -> str:
    """What ranks hold: ``[2, 64]`` where all hold as much, else the distinct shards in rank order."""
    if not layout.uneven_axes:
        return str(list(layout.largest_local_shape))
    ranks = _distinct_ranks(layout)
    if len(ranks) > 8:
        ranks = [*ranks[:6], ranks[-1]]
        shapes = [str(list(layout.local_shape(rank))) for rank in ranks]
        return " ".join([*shapes[:6], "...", shapes[-1]])
    return " ".join(str(list(layout.local_shape(rank))) for rank in ranks)


def _distinct_ranks(layout: Layout) -> list[int]:
    """One rank for each shard: index 0 along every axis that does not divide the tensor unevenly."""
    mesh, moving = layout.mesh, layout.uneven_axes
    ranks = [0]
    for position, axis in enumerate(mesh.axes):
        if axis in moving:
            stride = math.prod(mesh.shape[position + 1 :])
            ranks = [rank + index * stride for rank in ranks for index in range(mesh.shape[position])]
    return ranks


def format_dim(size: int, splits: tuple[Split, ...]) -> str:
    """One dim: its size, and the axes that divide it."""
    order = split_order(splits)
    if order is not None:
        return "/".join([str(size), *order])
    factors = _factors_of(size, splits)
    if factors is not None:
        return "(" + " ".join("/".join([str(factor.size), *factor.axes]) for factor in factors) + ")"
    return "/".join([str(size), *(f"{s.axis}~{s.split_factor}" if s.split_factor != 1 else s.axis for s in splits)])


def _factors_of(size: int, splits: tuple[Split, ...]) -> list[Factor] | None:
    """The factors of a dim that these split factors divide evenly, if there are such."""
    sizes = {split.axis: split.axis_size for split in splits}
    factors = [Factor(size, ())]
    for split in splits:
        placed = _place(factors, split, sizes)
        if placed is None:
            return None
        factors = placed
    return _joined(factors, sizes)


def _local(factor: Factor, sizes: dict[str, int]) -> int:
    return factor.size // math.prod(sizes[axis] for axis in factor.axes)


def _place(factors: list[Factor], split: Split, sizes: dict[str, int]) -> list[Factor] | None:
    """Divide the factor in front of which ``split_factor`` elements lie, cutting one in two where it must."""
    before = 1
    for position, factor in enumerate(factors):
        local = _local(factor, sizes)
        if before == split.split_factor:
            if local % split.axis_size:
                return None
            divided = Factor(factor.size, (*factor.axes, split.axis))
            return [*factors[:position], divided, *factors[position + 1 :]]
        front, rest = divmod(split.split_factor, before)
        if front < local:
            if rest or local % front or (local // front) % split.axis_size:
                return None
            cut = local // front
            pieces = [Factor(factor.size // cut, factor.axes), Factor(cut, (split.axis,))]
            return [*factors[:position], *pieces, *factors[position + 1 :]]
        before *= local
    return None


def _joined(factors: list[Factor], sizes: dict[str, int]) -> list[Factor]:
    """Join neighbours that are one factor: an undivided inner one, or one divided down to single elements."""
    joined = [factors[0]]
    for factor in factors[1:]:
        last = joined[-1]
        if not factor.axes or _local(last, sizes) == 1:
            joined[-1] = Factor(last.size * factor.size, last.axes + factor.axes)
        else:
            joined.append(factor)
    return joined
