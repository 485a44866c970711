"""What each rank gets of a whole tensor: its shard, or its piece of a pending reduction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spmd_lab.prove.pieces import cut, is_inexact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spmd_lab.layout import Layout

__all__ = ["local_values", "split_pending"]


def local_values(
    values: Sequence[torch.Tensor], layouts: Sequence[Layout], seed: int
) -> tuple[tuple[torch.Tensor, ...], ...]:
    """What each rank gets of each input: its shard, or its piece of a pending reduction; by input, then by rank."""
    return tuple(
        _on_ranks(value, layout, torch.Generator().manual_seed(seed * 100_003 + 50_021 + position))
        for position, (value, layout) in enumerate(zip(values, layouts, strict=True))
    )


def _on_ranks(value: torch.Tensor, layout: Layout, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    ranks = range(layout.mesh.size)
    if layout.is_replicated:
        return (value,) * len(ranks)
    pieces: dict[tuple[int, ...], torch.Tensor] = {(): value}
    for axis, kind in layout.pending.items():
        pieces = {
            (*place, index): piece
            for place, whole in pieces.items()
            for index, piece in enumerate(split_pending(whole, kind, layout.mesh.axis_size(axis), generator))
        }
    places = [layout.mesh.axis_index(axis) for axis in layout.pending]
    shards: dict[tuple[object, ...], torch.Tensor] = {}
    held = []
    for rank in ranks:
        coordinate = layout.mesh.coordinate(rank)
        place = tuple(coordinate[position] for position in places)
        key = (place, *(layout.runs(dim, coordinate) for dim in range(value.ndim)))
        if key not in shards:
            shards[key] = cut(pieces[place], layout, rank)
        held.append(shards[key])
    return tuple(held)


def split_pending(whole: torch.Tensor, kind: str, count: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Uneven pieces that a reduction turns into a whole tensor again.

    Parameters
    ----------
    whole : torch.Tensor
        What they reduce to.
    kind : str
        "sum", "avg", "max", "min" or "product".
    count : int
        How many pieces.
    generator : torch.Generator
        Where they come from.

    Examples
    --------
    >>> pieces = split_pending(torch.tensor([5, -7]), "sum", 3, torch.Generator().manual_seed(0))
    >>> sum(pieces)
    tensor([ 5, -7])
    """
    if count == 1:
        return [whole]
    if whole.dtype == torch.bool:
        return _owned(whole, kind, count, generator)
    if kind in ("sum", "avg"):
        offsets = [_offset(whole, generator) for _ in range(count - 1)]
        share = whole if kind == "avg" else torch.zeros_like(whole)
        rest = whole if kind == "sum" else whole * count
        pieces = [share + offset for offset in offsets]
        return [*pieces, rest - torch.stack(pieces).sum(0).to(whole.dtype)]
    return _owned(whole, kind, count, generator)


def _offset(whole: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Numbers as large as those of a tensor, and unlike them."""
    if not is_inexact(whole.dtype):
        low, high = (0, 2) if whole.dtype == torch.bool else (1, 8)
        return torch.randint(low, high, whole.shape, generator=generator).to(whole)
    size = float(whole.abs().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).double().mean()) if whole.numel() else 0.0
    return ((0.2 + torch.rand(whole.shape, generator=generator)) * (size or 1.0)).to(whole)


def _owned(whole: torch.Tensor, kind: str, count: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Pieces of which one, another for each element, holds the result; the others do not change it."""
    owner = torch.randint(0, count, whole.shape, generator=generator).to(whole.device)
    neutral = _neutral(whole, _offset(whole, generator), kind)
    return [torch.where(owner == index, whole, neutral) for index in range(count)]


def _neutral(whole: torch.Tensor, offset: torch.Tensor, kind: str) -> torch.Tensor:
    """Other values, that leave ``whole`` what it is when they are reduced with it."""
    if whole.dtype == torch.bool:
        return whole & offset if kind in ("sum", "max") else whole | offset
    if kind == "max":
        return whole - offset
    return whole + offset if kind == "min" else torch.ones_like(whole)
