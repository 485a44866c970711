"""The layout: how one tensor lies on a mesh."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import index
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from spmd_lab.elements import Run, Split, held_lengths, held_runs, piece_lengths, runs_length
from spmd_lab.errors import LayoutError, expect
from spmd_lab.mesh import Mesh
from spmd_lab.torch_internals.placements import StridedShard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spmd_lab.show.picture import Picture

__all__ = ["Layout", "replicated"]


@dataclass(frozen=True, repr=False)
class Layout:
    """How one tensor lies on a mesh: its global shape, and one placement per mesh axis.

    Parameters
    ----------
    global_shape : tuple of int
        The shape of the whole tensor.
    dtype : torch.dtype
        Its dtype.
    mesh : Mesh
        The mesh.
    placements : sequence of torch placements
        One per mesh axis, as ``DTensor`` has them. Negative dims count from the end.

    Raises
    ------
    LayoutError
        If there are more or fewer placements than axes, or a placement names a dim that the tensor lacks.

    Examples
    --------
    >>> from spmd_lab import Mesh
    >>> mesh = Mesh(dp=2, tp=4)
    >>> layout = Layout((16, 6), torch.float32, mesh, [Shard(0), Replicate()])
    >>> layout
    f32[16/dp, 6]
    >>> layout.local_shape(rank=7)
    (8, 6)
    >>> Layout.parse("f32[16/dp/tp, 6]", mesh).slices(rank=7)
    (slice(14, 16, None), slice(0, 6, None))
    """

    global_shape: tuple[int, ...]
    dtype: torch.dtype
    mesh: Mesh
    placements: tuple[Placement, ...]

    def __init__(
        self, global_shape: Sequence[int], dtype: torch.dtype, mesh: Mesh, placements: Sequence[Placement]
    ) -> None:
        expect(dtype, torch.dtype, "dtype", "torch.float32")
        expect(mesh, Mesh, "mesh", "sl.Mesh(dp=2, tp=4)")
        expect(placements, (list, tuple), "placements", "[Shard(0), Replicate()]; Layout.parse reads text")
        object.__setattr__(self, "global_shape", _sizes(global_shape))
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "mesh", mesh)
        object.__setattr__(self, "placements", self._checked(tuple(placements)))

    def _checked(self, placements: tuple[Placement, ...]) -> tuple[Placement, ...]:
        if len(placements) != self.mesh.ndim:
            raise LayoutError(
                f"{len(placements)} placements for the {self.mesh.ndim} axes of {self.mesh!r}",
                argument=str(list(placements)),
                hint="one placement per mesh axis, outermost first: "
                + ", ".join(f"{axis}: Replicate()" for axis in self.mesh.axes),
            )
        return tuple(self._with_positive_dim(placement) for placement in placements)

    def _with_positive_dim(self, placement: Placement) -> Placement:
        if not isinstance(placement, Placement):
            raise LayoutError(
                f"{placement!r} is no placement",
                argument=repr(placement),
                hint="Shard(0), Replicate() or Partial(); Layout.parse reads text",
            )
        if not isinstance(placement, (Shard, StridedShard)):
            return placement
        ndim = len(self.global_shape)
        if not -ndim <= placement.dim < ndim:
            raise LayoutError(
                f"{placement} divides a dim that a tensor of shape {self.global_shape} lacks",
                argument=str(placement),
                hint=f"dims run from 0 to {ndim - 1}" if ndim else "a 0-d tensor can only be Replicate or Partial",
            )
        dim = placement.dim % ndim
        if isinstance(placement, StridedShard) and placement.split_factor != 1:
            return StridedShard(dim, split_factor=placement.split_factor)
        return Shard(dim)

    @classmethod
    def parse(
        cls, text: str, mesh: Mesh, shape: Sequence[int] | None = None, dtype: torch.dtype | None = None
    ) -> Layout:
        """Read a layout from the notation; what ``str`` prints can be read back.

        Parameters
        ----------
        text : str
            ``"f32[16/dp, 64]{sum: tp}"``, or only its dims, named as you like: ``"b/dp d"``, ``"b/dp ..."``.
        mesh : Mesh
            The mesh whose axes it names.
        shape, dtype : optional
            Of the tensor; needed where the text does not give them.

        Raises
        ------
        NotationError
            If the text does not read as a layout of such a tensor on this mesh.

        Examples
        --------
        >>> from spmd_lab import Mesh
        >>> Layout.parse("b/dp ...", Mesh(dp=4), shape=(8, 3, 3), dtype=torch.float32)
        f32[8/dp, 3, 3]
        """
        from spmd_lab.parsing import parse_layout

        return parse_layout(text, mesh, shape, dtype)

    @cached_property
    def _hash(self) -> int:
        return hash((self.global_shape, self.dtype, self.mesh, self.placements))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _splits(self) -> tuple[tuple[Split, ...], ...]:
        splits: list[list[Split]] = [[] for _ in self.global_shape]
        for axis, size, placement in zip(self.mesh.axes, self.mesh.shape, self.placements, strict=True):
            if isinstance(placement, StridedShard):
                splits[placement.dim].append(Split(axis, size, int(placement.split_factor)))
            elif isinstance(placement, Shard):
                splits[placement.dim].append(Split(axis, size))
        return tuple(tuple(found) for found in splits)

    def splits(self, dim: int) -> tuple[Split, ...]:
        """The divisions of one dim, in mesh-axis order."""
        return self._splits[dim]

    @cached_property
    def pending(self) -> dict[str, str]:
        """The axes on which the tensor is a pending reduction, with the kind of reduction."""
        return {
            axis: placement.reduce_op
            for axis, placement in zip(self.mesh.axes, self.placements, strict=True)
            if isinstance(placement, Partial)
        }

    @property
    def is_pending(self) -> bool:
        """Whether some axis holds a reduction that has not been carried out."""
        return bool(self.pending)

    @property
    def is_replicated(self) -> bool:
        """Whether every rank holds the whole tensor."""
        return all(isinstance(placement, Replicate) for placement in self.placements)

    @cached_property
    def uneven_axes(self) -> frozenset[str]:
        """The axes along which ranks hold shards of different sizes.

        Examples
        --------
        >>> from spmd_lab import Mesh
        >>> layout = Layout.parse("f32[4/dp/tp]", Mesh(dp=2, tp=4))
        >>> sorted(layout.uneven_axes), layout.with_local_sizes()
        (['tp'], 'f32[4/dp/tp] ▸ [1] [1] [0] [0]')
        """
        return frozenset(
            split.axis
            for splits, lengths in zip(self._splits, self._lengths, strict=True)
            for split, before in zip(splits, lengths, strict=False)
            if any(len(piece_lengths(length, split)) > 1 for length in before)
        )

    @cached_property
    def _lengths(self) -> tuple[list[frozenset[int]], ...]:
        return tuple(held_lengths(size, splits) for size, splits in zip(self.global_shape, self._splits, strict=True))

    def runs(self, dim: int, coordinate: tuple[int, ...]) -> tuple[Run, ...]:
        """The global indices of one dim that the rank at ``coordinate`` holds, as runs."""
        splits = self._splits[dim]
        indices = tuple(coordinate[self.mesh.axis_index(split.axis)] for split in splits)
        return held_runs(self.global_shape[dim], splits, indices)

    def local_shape(self, rank: int) -> tuple[int, ...]:
        """The shape of the shard that a rank holds."""
        return _local_shape(self, self.mesh.coordinate(rank))

    def local_shape_at(self, coordinate: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the shard at a mesh coordinate."""
        return _local_shape(self, coordinate)

    @cached_property
    def largest_local_shape(self) -> tuple[int, ...]:
        """The shape of the largest shard: that of rank 0, unless strided divisions are uneven."""
        return tuple(max(lengths[-1]) for lengths in self._lengths)

    def slices(self, rank: int) -> tuple[slice | torch.Tensor, ...]:
        """Which global elements a rank holds: ``tensor[layout.slices(rank)]`` is its shard.

        Returns
        -------
        tuple
            A slice per dim; where elements are not contiguous, an open mesh of index arrays instead.

        Examples
        --------
        >>> from spmd_lab import Mesh
        >>> layout = Layout.parse("i64[(2 4/tp)]", Mesh(tp=2))
        >>> torch.arange(8)[layout.slices(rank=1)]
        tensor([2, 3, 6, 7])
        """
        coordinate = self.mesh.coordinate(rank)
        runs = [self.runs(dim, coordinate) for dim in range(len(self.global_shape))]
        if all(len(found) <= 1 for found in runs):
            return tuple(slice(*found[0]) if found else slice(0, 0) for found in runs)
        held = [torch.cat([torch.arange(*run) for run in found] or [torch.arange(0)]) for found in runs]
        return tuple(
            found.reshape([-1 if dim == other else 1 for other in range(len(held))]) for dim, found in enumerate(held)
        )

    def with_placements(self, placements: Sequence[Placement]) -> Layout:
        """The same tensor, placed otherwise."""
        return Layout(self.global_shape, self.dtype, self.mesh, placements)

    def settled(self) -> Layout:
        """The layout once nothing is pending any more."""
        return self.with_placements([Replicate() if isinstance(each, Partial) else each for each in self.placements])

    def nbytes(self, shape: Sequence[int]) -> int:
        """The bytes of a tensor of this dtype and the given shape."""
        return math.prod(_sizes(shape)) * self.dtype.itemsize

    def draw(self) -> Picture:
        """Which rank holds what, as a picture: tensors of up to 6 dims, meshes of up to 4 axes.

        Raises
        ------
        LayoutError
            If there are more.
        """
        from spmd_lab.records import draw_layout

        return draw_layout(self)

    def __str__(self) -> str:
        from spmd_lab.notation import format_layout

        return format_layout(self)

    def __repr__(self) -> str:
        return str(self)

    def with_local_sizes(self) -> str:
        """The notation, followed by what the ranks hold.

        Examples
        --------
        >>> from spmd_lab import Mesh
        >>> Layout.parse("f32[5/dp]", Mesh(dp=4)).with_local_sizes()
        'f32[5/dp] ▸ [2] [2] [1] [0]'
        """
        from spmd_lab.notation import format_local_sizes

        return f"{self} ▸ {format_local_sizes(self)}"


def _sizes(global_shape: Sequence[int]) -> tuple[int, ...]:
    try:
        sizes = tuple(map(index, global_shape))
    except TypeError:
        sizes = None
    if sizes is None or min(sizes, default=0) < 0:
        raise LayoutError(f"{global_shape!r} is no shape", argument=repr(global_shape), hint="whole numbers: (16, 64)")
    return sizes


@lru_cache(maxsize=65536)
def _local_shape(layout: Layout, coordinate: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(
        runs_length(layout.runs(dim, coordinate)) if layout.splits(dim) else size
        for dim, size in enumerate(layout.global_shape)
    )


def replicated(global_shape: Sequence[int], dtype: torch.dtype, mesh: Mesh) -> Layout:
    """The layout of a tensor that every rank holds whole."""
    return Layout(global_shape, dtype, mesh, [Replicate()] * mesh.ndim)
