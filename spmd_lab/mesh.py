"""The mesh: a description of ranks on named axes, not a set of processes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spmd_lab.errors import MeshError, expect, nearest

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Mesh"]

_AXIS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, init=False, repr=False)
class Mesh:
    """Ranks on named axes. It needs no launcher and no process group, so it can have any size.

    Parameters
    ----------
    device_type : str, optional
        Where the tensors live ("cpu", "cuda"). By default that of the traced tensors.
    **axes : int
        The size of each axis, outermost first: ``Mesh(dp=2, tp=4)`` has 8 ranks, and
        ranks 0 to 3 form the first ``tp`` group.

    Raises
    ------
    MeshError
        If an axis has no valid name or a size below 1, or if there is no axis.

    Examples
    --------
    >>> mesh = Mesh(dp=2, tp=4)
    >>> mesh
    Mesh(dp=2, tp=4)
    >>> mesh.size, mesh.coordinate(6)
    (8, (1, 2))
    """

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    device_type: str | None = None

    def __init__(self, *unnamed: object, device_type: str | None = None, **axes: int) -> None:
        if unnamed:
            given = ", ".join(map(repr, unnamed))
            hint = "Mesh(dp=2, tp=4); Mesh.parse reads text, Mesh.from_device_mesh a DeviceMesh"
            raise MeshError("the axes of a mesh have names", argument=f"Mesh({given})", hint=hint)
        if not axes:
            raise MeshError("a mesh needs at least one axis", hint="Mesh(dp=4)")
        for name, size in axes.items():
            if not _AXIS.match(name):
                raise MeshError(f"{name!r} is no name for an axis", hint="letters, digits and underscores, as in dp=4")
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise MeshError(
                    f"axis {name!r} has size {size!r}", argument=f"{name}={size!r}", hint="a whole number from 1"
                )
        object.__setattr__(self, "axes", tuple(axes))
        object.__setattr__(self, "shape", tuple(axes.values()))
        object.__setattr__(self, "device_type", device_type)

    @classmethod
    def parse(cls, text: str, device_type: str | None = None) -> Mesh:
        """Read a mesh from text, as a command line gives it.

        Parameters
        ----------
        text : str
            Axes and sizes, outermost first, separated by commas.
        device_type : str, optional
            As in the constructor.

        Raises
        ------
        MeshError
            If the text is not of the form ``dp=2,tp=4``, or repeats an axis.

        Examples
        --------
        >>> Mesh.parse("dp=2,tp=4")
        Mesh(dp=2, tp=4)
        """
        expect(text, str, "text", "dp=2,tp=4")
        axes: dict[str, int] = {}
        for part in text.split(","):
            name, equals, size = (piece.strip() for piece in part.partition("="))
            if not (equals and size.isdecimal()):
                raise MeshError(f"{part.strip()!r} is not an axis and its size", argument=repr(text), hint="dp=2,tp=4")
            if name in axes:
                raise MeshError(f"axis {name!r} stands twice", argument=repr(text), hint="give each axis its own name")
            axes[name] = int(size)
        if "device_type" in axes:
            raise MeshError("'device_type' is no name for an axis", argument=repr(text), hint="another name")
        return cls(device_type=device_type, **axes)

    @classmethod
    def from_device_mesh(cls, device_mesh: DeviceMesh) -> Mesh:
        """Describe a torch ``DeviceMesh``; axes without a name are called ``axis0``, ``axis1``, ….

        It needs the process group that a ``DeviceMesh`` needs::

            Mesh.from_device_mesh(init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp")))
        """
        from torch.distributed.device_mesh import DeviceMesh

        expect(device_mesh, DeviceMesh, "device_mesh", "torch.distributed.init_device_mesh(...)")
        names = device_mesh.mesh_dim_names or tuple(f"axis{i}" for i in range(device_mesh.ndim))
        sizes = dict(zip(names, device_mesh.shape, strict=True))
        return cls(device_type=device_mesh.device_type, **sizes)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.axes)

    def axis_size(self, axis: str) -> int:
        """The number of ranks along one axis."""
        return self.shape[self.axis_index(axis)]

    def axis_index(self, axis: str) -> int:
        """The position of an axis, outermost first.

        Raises
        ------
        MeshError
            If the mesh has no such axis.
        """
        if axis not in self.axes:
            raise MeshError(f"{self} has no axis {axis!r}", argument=axis, hint=nearest(axis, self.axes))
        return self.axes.index(axis)

    def coordinate(self, rank: int) -> tuple[int, ...]:
        """Where a rank stands: its index along each axis (the last axis runs fastest).

        Raises
        ------
        MeshError
            If the mesh has no such rank.
        """
        if not isinstance(rank, int) or not 0 <= rank < self.size:
            raise MeshError(
                f"{self} has no rank {rank!r}", argument=repr(rank), hint=f"ranks run from 0 to {self.size - 1}"
            )
        coordinate = []
        for size in reversed(self.shape):
            rank, index = divmod(rank, size)
            coordinate.append(index)
        return tuple(reversed(coordinate))

    def rank(self, coordinate: tuple[int, ...]) -> int:
        """The rank at a coordinate; the inverse of `coordinate`.

        Raises
        ------
        MeshError
            If the coordinate has more or fewer indices than the mesh has axes, or one that its axis lacks.

        Examples
        --------
        >>> Mesh(dp=2, tp=4).rank((1, 2))
        6
        """
        fits = isinstance(coordinate, (tuple, list)) and len(coordinate) == self.ndim
        if fits:
            pairs = zip(coordinate, self.shape, strict=True)
            fits = all(isinstance(index, int) and 0 <= index < size for index, size in pairs)
        if not fits:
            raise MeshError(
                f"{self} has no coordinate {coordinate}",
                argument=str(coordinate),
                hint="an index per axis, from " + ", ".join(f"0 to {size - 1}" for size in self.shape),
            )
        rank = 0
        for index, size in zip(coordinate, self.shape, strict=True):
            rank = rank * size + index
        return rank

    def group(self, rank: int, axis: str) -> tuple[int, ...]:
        """The ranks that differ from ``rank`` along ``axis`` alone, itself included, in order.

        Examples
        --------
        >>> Mesh(dp=2, tp=4).group(6, "dp")
        (2, 6)
        """
        here = list(self.coordinate(rank))
        position = self.axis_index(axis)
        members = []
        for index in range(self.shape[position]):
            here[position] = index
            members.append(self.rank(tuple(here)))
        return tuple(members)

    def with_device_type(self, device_type: str) -> Mesh:
        """The same axes on another type of device."""
        return Mesh(device_type=device_type, **dict(zip(self.axes, self.shape, strict=True)))

    def __str__(self) -> str:
        return " x ".join(f"{axis}={size}" for axis, size in zip(self.axes, self.shape, strict=True))

    def __repr__(self) -> str:
        parts = [f"{axis}={size}" for axis, size in zip(self.axes, self.shape, strict=True)]
        if self.device_type is not None:
            parts.append(f"device_type={self.device_type!r}")
        return f"Mesh({', '.join(parts)})"
