"""The layouts that every sample is expanded with."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from spmd_lab import Mesh

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


__all__ = ["Case", "cases"]


class Case(NamedTuple):
    """A mesh, and the placements of each tensor of a sample on it."""

    name: str
    mesh: Mesh
    placements: tuple[tuple[Placement, ...], ...]


def cases(tensors: Sequence[torch.Tensor], quick: bool = False) -> Iterator[Case]:
    """The layouts for some tensors, each once; ``quick`` leaves out the mesh of two axes.

    A pending sum is asked of the tensors that are rounded, or of the integers where there are no others.

    Examples
    --------
    >>> import torch
    >>> [case.name for case in cases([torch.ones(3, 3)])]
    ['4: S(0)', '4: S(-1)', '4: R', '4: P', '2x2: S(0) S(-1)', '2x2: S(0) S(0)', '2x2: P S(-1)']
    >>> [case.name for case in cases([torch.ones(())])]
    ['4: S(0)', '4: P', '2x2: S(0) S(-1)', '2x2: P S(-1)']
    """
    pends = _pending_tensors(tensors)
    seen = set()
    for name, mesh, kinds in (
        ("4: S(0)", Mesh(x=4), (_first,)),
        ("4: S(-1)", Mesh(x=4), (_last,)),
        ("4: R", Mesh(x=4), (_whole,)),
        ("4: P", Mesh(x=4), (_pending,)),
        ("2x2: S(0) S(-1)", Mesh(x=2, y=2), (_first, _last)),
        ("2x2: S(0) S(0)", Mesh(x=2, y=2), (_first, _first)),
        ("2x2: P S(-1)", Mesh(x=2, y=2), (_pending, _last)),
    ):
        placements = tuple(
            tuple(kind(tensor, pend) for kind in kinds) for tensor, pend in zip(tensors, pends, strict=True)
        )
        if (mesh, placements) not in seen and not (quick and mesh.ndim > 1):
            seen.add((mesh, placements))
            yield Case(name, mesh, placements)


def _pending_tensors(tensors: Sequence[torch.Tensor]) -> list[bool]:
    rounded = [each.is_floating_point() or each.is_complex() for each in tensors]
    return rounded if any(rounded) else [each.dtype != torch.bool for each in tensors]


def _first(tensor: torch.Tensor, _: bool) -> Placement:
    return Shard(0) if tensor.ndim else Replicate()


def _last(tensor: torch.Tensor, _: bool) -> Placement:
    return Shard(tensor.ndim - 1) if tensor.ndim else Replicate()


def _whole(_: torch.Tensor, __: bool) -> Placement:
    return Replicate()


def _pending(_: torch.Tensor, pends: bool) -> Placement:
    return Partial() if pends else Replicate()
