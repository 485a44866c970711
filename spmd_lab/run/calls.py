"""What a call is made with: the shapes that one rank sees, and the whole ones behind those of all ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from spmd_lab.errors import ArgumentError
from spmd_lab.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spmd_lab.trace.arguments import Arguments

__all__ = ["CallKind", "TensorKind", "dense", "example_of", "kind_of", "whole_kind"]


@dataclass(frozen=True)
class TensorKind:
    """What a call says of one tensor.

    Parameters
    ----------
    shape, dtype
        Of the tensor: a rank's shard, or the whole.
    order : tuple of int
        Its dims, from the largest stride to the smallest.
    requires_grad : bool
        Whether autograd wants its gradient.
    is_whole : bool
        Whether ``shape`` is that of the whole tensor.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    order: tuple[int, ...]
    requires_grad: bool
    is_whole: bool


@dataclass(frozen=True)
class CallKind:
    """All that a program depends on in a call; calls of equal kind run the same program.

    Parameters
    ----------
    tensors : tuple of (str, TensorKind)
        The tensors among the arguments, by name.
    constants : tuple of (str, str, int)
        The other arguments: name, value as text, and which object it is where the text does not say all.
    mode : tuple
        What else the program depends on.
    """

    tensors: tuple[tuple[str, TensorKind], ...]
    constants: tuple[tuple[str, str, int], ...]
    mode: tuple[object, ...]

    def local(self, layouts: Mapping[str, Layout], rank: int) -> CallKind:
        """The kind of the call that a rank makes with its shards of these whole tensors."""
        return replace(
            self,
            tensors=tuple(
                (name, replace(kind, shape=layouts[name].local_shape(rank), is_whole=False))
                for name, kind in self.tensors
            ),
        )


def kind_of(arguments: Arguments, mode: tuple[object, ...], *, is_whole: bool) -> CallKind:
    """The kind of a call."""
    wants_gradients = torch.is_grad_enabled()
    tensors, constants = [], []
    for leaf in arguments.leaves:
        value = leaf.value
        if isinstance(value, torch.Tensor):
            distributed = isinstance(value, DTensor)
            requires_grad = wants_gradients and value.requires_grad
            order = tuple(range(value.ndim)) if distributed else dims_by_stride(value)
            kind = TensorKind(tuple(value.shape), value.dtype, order, requires_grad, is_whole or distributed)
            tensors.append((leaf.name, kind))
        else:
            constants.append((leaf.name, *_told(value)))
    return CallKind(tuple(tensors), tuple(constants), mode)


def _told(value: object) -> tuple[str, int]:
    """Plain values by what they are; others by their type, and by which object they are in this process."""
    plain = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
    return (repr(value), 0) if type(value) in plain else (type(value).__qualname__, id(value))


def dims_by_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """The dims of a tensor as they lie in memory, outermost first.

    Examples
    --------
    >>> dims_by_stride(torch.zeros(2, 3)), dims_by_stride(torch.zeros(2, 3).t())
    ((0, 1), (1, 0))
    """
    dims, strides = range(tensor.ndim), tensor.stride()
    return tuple(dims if tensor.is_contiguous() else sorted(dims, key=lambda dim: -strides[dim]))


def dense(tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """A tensor whose dims lie in memory in a given order, without holes; itself where it does already."""
    if tensor.permute(tuple(order)).is_contiguous():
        return tensor
    return tensor.permute(tuple(order)).contiguous().permute(_inverse(order))


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=lambda dim: order[dim]))


def example_of(kind: TensorKind, device: torch.device | str) -> torch.Tensor:
    """A tensor of this kind to trace with."""
    shape = [kind.shape[dim] for dim in kind.order]
    empty = torch.empty(shape, dtype=kind.dtype, device=device).permute(_inverse(kind.order))
    return empty.requires_grad_(kind.requires_grad)


def whole_kind(calls: Sequence[CallKind], layouts: Mapping[str, Layout]) -> CallKind:
    """The kind of the one call that all ranks make together, each with its shards.

    Parameters
    ----------
    calls : sequence of CallKind
        That of each rank, in the order of the mesh.
    layouts : mapping of str to Layout
        How a tensor of each name lies on the mesh; their sizes do not matter.

    Raises
    ------
    ArgumentError
        If ranks call differently, or the shards are not those of one tensor; it names the rank.
    """
    first = calls[0]
    for rank, call in enumerate(calls):
        _refuse_difference(rank, _without_shapes(call), _without_shapes(first))
    if {name for name, _ in first.tensors} != set(layouts):
        raise ArgumentError(
            f"the call has the tensors {_names(first)}, the example had {', '.join(layouts) or 'none'}",
            argument="*args, **kwargs",
            hint="distribute the module once more, with an example of this kind",
        )
    tensors = []
    for position, (name, kind) in enumerate(first.tensors):
        kinds = [call.tensors[position][1] for call in calls]
        tensors.append((name, replace(kind, shape=_whole_shape(name, kinds, layouts[name]), is_whole=True)))
    return replace(first, tensors=tuple(tensors))


def _without_shapes(call: CallKind) -> tuple[object, ...]:
    tensors = [(name, len(kind.shape), kind.dtype, kind.requires_grad, kind.is_whole) for name, kind in call.tensors]
    return tensors, [(name, text) for name, text, _ in call.constants], call.mode


def _refuse_difference(rank: int, call: tuple[Any, ...], first: tuple[Any, ...]) -> None:
    for what, here, there in zip(("tensors", "flags", "modes"), call, first, strict=True):
        if here != there:
            raise ArgumentError(
                f"rank {rank} calls the module with other {what} than rank 0",
                argument="*args, **kwargs",
                layouts={f"rank {rank}": here, "rank 0": there},
                hint="every rank makes the same call, each with its own shards",
            )


def _names(call: CallKind) -> str:
    return ", ".join(name for name, _ in call.tensors) or "none"


def _whole_shape(name: str, kinds: Sequence[TensorKind], layout: Layout) -> tuple[int, ...]:
    """The shape of the tensor whose shards the ranks have."""
    if len(kinds[0].shape) != len(layout.global_shape):
        raise ArgumentError(
            f"{name!r} has {len(kinds[0].shape)} dims, in the example it had {len(layout.global_shape)}",
            argument=name,
            layouts={name: layout},
            hint="distribute the module once more, with an example of this kind",
        )
    shape = kinds[0].shape
    if not kinds[0].is_whole:
        shape = tuple(_whole_size(dim, kinds, layout) for dim in range(len(shape)))
    found = Layout(shape, kinds[0].dtype, layout.mesh, layout.placements)
    for rank, kind in enumerate(kinds):
        expected = shape if kind.is_whole else found.local_shape(rank)
        if kind.shape != expected:
            raise ArgumentError(
                f"rank {rank} has {name!r} of shape {list(kind.shape)}; "
                f"its part of the whole {list(shape)} is {list(expected)}",
                argument=name,
                layouts={name: found.with_local_sizes()},
                hint="divide as torch.chunk does, or pass whole tensors with global_inputs=True",
            )
    return shape


def _whole_size(dim: int, kinds: Sequence[TensorKind], layout: Layout) -> int:
    """The sizes of the shards along the axes that divide a dim, summed up."""
    mesh = layout.mesh
    dividing = {split.axis for split in layout.splits(dim)}
    coordinates = product(
        *(range(size) if axis in dividing else [0] for axis, size in zip(mesh.axes, mesh.shape, strict=True))
    )
    return sum(kinds[mesh.rank(coordinate)].shape[dim] for coordinate in coordinates)
