"""The values that a program is verified on, and what each rank gets of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import fx

from spmd_lab.errors import ArgumentError, nearest
from spmd_lab.prove.pieces import cut, is_inexact
from spmd_lab.torch_internals.fakes import is_fake

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spmd_lab.layout import Layout
    from spmd_lab.trace.values import TracedGraph, TracedInput

__all__ = ["global_values", "local_values", "split_pending"]

aten = torch.ops.aten


# --- the whole tensors --------------------------------------------------------------------------


def global_values(
    traced: TracedGraph, given: Mapping[str, torch.Tensor] | Sequence[torch.Tensor | None] | None, seed: int
) -> tuple[torch.Tensor, ...]:
    """One real tensor per input of the traced program.

    Parameters
    ----------
    traced : TracedGraph
        The program of one device.
    given : mapping, sequence or None
        Values by the names of inputs, or by position for the tensor inputs that are neither parameters, buffers nor
        closed over (None: the default). By default inputs have the values that they were traced with, and parameters
        their present ones; where those are fake, and for tangents, values are drawn.
    seed : int
        Of what is drawn.

    Raises
    ------
    ArgumentError
        If a name is unknown, or a shape or dtype differs from what was traced.
    """
    chosen = _by_name(traced, given)
    values = []
    for position, (each, example) in enumerate(zip(traced.inputs, traced.values, strict=True)):
        if each.name in chosen:
            values.append(_checked(each, chosen[each.name]))
        elif each.role != "tangent" and is_real(example):
            values.append(example.detach())
        else:
            generator = torch.Generator().manual_seed(seed * 100_003 + position)
            values.append(_drawn(traced, each, generator).to(_device(example)))
    return tuple(values)


def is_real(tensor: torch.Tensor) -> bool:
    """Whether a tensor has data."""
    return not is_fake(tensor) and tensor.device.type != "meta"


def _device(example: torch.Tensor) -> torch.device:
    return torch.device("cpu") if example.device.type == "meta" else example.device


def _by_name(
    traced: TracedGraph, given: Mapping[str, torch.Tensor] | Sequence[torch.Tensor | None] | None
) -> dict[str, torch.Tensor]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {_known(traced, name): value for name, value in given.items()}
    if isinstance(given, torch.Tensor):
        given = (given,)
    places = [each.name for each in traced.inputs if each.role == "input" and not each.closure]
    if len(given) > len(places):
        raise ArgumentError(
            f"{traced.name} has {len(places)} tensor inputs, not {len(given)}",
            argument="inputs",
            hint="in order: " + (", ".join(places) or "none"),
        )
    return {name: value for name, value in zip(places, given, strict=False) if value is not None}


def _known(traced: TracedGraph, name: str) -> str:
    for each in traced.inputs:
        if name in each.names:
            return each.name
    names = [alias for each in traced.inputs for alias in each.names]
    raise ArgumentError(f"{traced.name} has no input {name!r}", argument="inputs", hint=nearest(name, names))


def _checked(known: TracedInput, value: torch.Tensor) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or not is_real(value):
        raise ArgumentError(
            f"input {known.name!r} is given {type(value).__name__}, which has no data",
            argument=f"inputs[{known.name!r}]",
            hint="a tensor with data",
        )
    if tuple(value.shape) != known.global_shape or value.dtype != known.dtype:
        raise ArgumentError(
            f"input {known.name!r} was traced as {list(known.global_shape)} {known.dtype}, "
            f"not {list(value.shape)} {value.dtype}",
            argument=f"inputs[{known.name!r}]",
            hint="whole tensors, of the shapes and dtypes that were traced",
        )
    return value.detach()


# --- drawn values -------------------------------------------------------------------------------


def _drawn(traced: TracedGraph, each: TracedInput, generator: torch.Generator) -> torch.Tensor:
    """A value of the kind that an input is: no tangent is near zero, no variance is negative, indices exist."""
    shape, dtype = each.global_shape, each.dtype
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not is_inexact(dtype):
        return torch.randint(0, max(index_bound(traced.node(each.node)), 1), shape, generator=generator).to(dtype)
    if each.role == "tangent":
        signs = torch.randint(0, 2, shape, generator=generator) * 2 - 1
        return (signs * (0.5 + torch.rand(shape, generator=generator))).to(dtype)
    if each.role == "buffer":
        return (0.5 + torch.rand(shape, generator=generator)).to(dtype)
    scale = 0.1 if each.role == "parameter" else 1.0
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


_INDEX_OF: dict[object, tuple[int, int | None]] = {
    aten.embedding.default: (0, 0),
    aten.index_select.default: (0, None),
    aten.gather.default: (0, None),
    aten.scatter.value: (0, None),
    aten.scatter.src: (0, None),
    aten.nll_loss_forward.default: (0, -1),
    aten.nll_loss2d_forward.default: (0, 1),
}
"""Operators whose second tensor holds indices: the argument that they index, and its dim (None: the argument ``dim``)."""
_FORWARDING = (
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.unsqueeze.default, aten.expand.default,
    aten.permute.default, aten.clone.default, aten.slice.Tensor, aten._to_copy.default, aten.alias.default,
    aten.detach.default, aten.squeeze.dim, aten.squeeze.dims, aten.t.default, aten.transpose.int, aten.select.int,
)  # fmt: skip


def index_bound(node: fx.Node) -> int:
    """The smallest number that is too large as an index where a value is used as one; 2 where it is used otherwise.

    Parameters
    ----------
    node : torch.fx.Node
        The node that holds the integers.
    """
    bounds = [bound for user in node.users for bound in _bounds(node, user)]
    return min(bounds, default=2)


def _bounds(node: fx.Node, user: fx.Node) -> list[int]:
    if user.target in _INDEX_OF:
        position, dim = _INDEX_OF[user.target]
        indexed = user.args[position]
        if isinstance(indexed, fx.Node) and indexed is not node:
            shape = indexed.meta["val"].shape
            where = user.args[1] if dim is None else dim
            return [int(shape[int(str(where))])] if shape else [1]
    if user.target is aten.index.Tensor and isinstance(user.args[0], fx.Node) and isinstance(user.args[1], (list, tuple)):
        shape = user.args[0].meta["val"].shape
        return [int(shape[dim]) for dim, index in enumerate(user.args[1]) if index is node]
    if user.target in _FORWARDING:
        return [index_bound(user)] if _is_index(user) else []
    return []


def _is_index(node: fx.Node) -> bool:
    return any(_bounds(node, user) for user in node.users)


# --- what each rank gets ------------------------------------------------------------------------


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
    pieces = {(): value}
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


def split_pending(
    whole: torch.Tensor, kind: str, count: int, generator: torch.Generator
) -> list[torch.Tensor]:
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

