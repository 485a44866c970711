"""From the layout that a tensor has to the layout that is needed: which moves, and the nodes that make them.

`plan_moves` works on layouts alone. A dim's sharding is seen as an order of axes, outermost first; an axis can only
leave a dim from the innermost place, and only come in innermost. Moves that shrink a tensor come before moves that
communicate, and those before moves that enlarge it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.elements import Split, order_factor, split_order
from spmd_lab.errors import LayoutError
from spmd_lab.expand.values import Move, Redistribution
from spmd_lab.torch_internals.placements import StridedShard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.expand.values import MoveKind
    from spmd_lab.layout import Layout
    from spmd_lab.mesh import Mesh

__all__ = ["divided_further", "opaque_dims", "plan_moves", "redistribution"]


@lru_cache(maxsize=16384)
def redistribution(have: Layout, need: Layout) -> Redistribution | None:
    """The record of how to get from one layout to another; None where they are equal.

    Examples
    --------
    >>> from spmd_lab import Layout, Mesh
    >>> mesh = Mesh(dp=2, tp=4)
    >>> have, need = Layout.parse("f32[16/dp, 8]{sum: tp}", mesh), Layout.parse("f32[16/dp, 8/tp]", mesh)
    >>> [(move.kind, move.axis) for move in redistribution(have, need).moves]
    [('reduce_scatter', 'tp')]
    """
    if have.placements == need.placements:
        return None
    return Redistribution(have, need, plan_moves(have, need))


def divided_further(layout: Layout, axis: str, dim: int) -> Layout:
    """The layout in which one more axis divides a dim, below those that do already.

    Examples
    --------
    >>> from spmd_lab import Layout, Mesh
    >>> divided_further(Layout.parse("f32[16/tp, 8]", Mesh(dp=2, tp=4)), "dp", 0)
    f32[16/tp/dp, 8]
    """
    if split_order(layout.splits(dim)) is None:
        return _placed(layout, axis, Shard(dim))
    others = frozenset(range(len(layout.global_shape))) - {dim}
    return _layout(_state(layout, others).divided(axis, dim), layout, others)


# --- planning -----------------------------------------------------------------------------------


class _State(NamedTuple):
    """Where each axis stands: the axes that divide each dim, outermost first, and the pending ones."""

    orders: tuple[tuple[str, ...], ...]
    pending: dict[str, str]

    def dim_of(self, axis: str) -> int | None:
        return next((dim for dim, order in enumerate(self.orders) if axis in order), None)

    def without(self, axis: str) -> _State:
        orders = tuple(tuple(other for other in order if other != axis) for order in self.orders)
        return _State(orders, {other: kind for other, kind in self.pending.items() if other != axis})

    def divided(self, axis: str, dim: int) -> _State:
        left = self.without(axis)
        orders = tuple((*order, axis) if dim == other else order for other, order in enumerate(left.orders))
        return _State(orders, left.pending)

    def made_pending(self, axis: str, kind: str) -> _State:
        left = self.without(axis)
        return _State(left.orders, {**left.pending, axis: kind})


def plan_moves(have: Layout, need: Layout) -> tuple[Move, ...]:
    """The moves from one layout to another, in order.

    Raises
    ------
    LayoutError
        If reductions that do not commute are pending on different axes.

    Notes
    -----
    Where a dim is divided in a way that no order of axes describes (a flattened dim, or uneven pieces of blocks), it
    is gathered whole first, or cut from the whole last, one axis at a time.
    """
    for end in (have, need):
        _refuse_mixed_reductions(end)
    changing = frozenset(range(len(have.global_shape))) - _same_dims(have, need)
    moves: list[Move] = []
    layout = have
    for axis in _block_axes(have, changing):
        layout = _append(moves, "all_gather", axis, layout, _placed(layout, axis, Replicate()))
    cut = _block_axes(need, changing)
    target = need
    for axis in cut:
        target = _placed(target, axis, Replicate())
    layout = _plan_ordered(moves, layout, target)
    for axis in reversed(cut):
        wanted = need.placements[need.mesh.axis_index(axis)]
        layout = _append(moves, "slice", axis, layout, _placed(layout, axis, wanted))
    return tuple(moves)


def _refuse_mixed_reductions(layout: Layout) -> None:
    kinds = set(layout.pending.values())
    if len(kinds) > 1 and not kinds <= {"sum", "avg"}:
        raise LayoutError(
            f"{' and '.join(sorted(kinds))} are pending at once: the value depends on which is carried out first",
            layouts={"tensor": layout},
            hint="one kind of reduction at a time (sum and avg may be mixed)",
        )


def _append(moves: list[Move], kind: MoveKind, axis: str, before: Layout, after: Layout) -> Layout:
    moves.append(Move(kind, axis, before, after))
    return after


def _plan_ordered(moves: list[Move], have: Layout, need: Layout) -> Layout:
    """Plan between layouts whose changing dims are all described by orders of axes."""
    fixed = opaque_dims(have)
    state, target = _state(have, fixed), _state(need, fixed)
    layout = have
    while state != target:
        kind, axis, state = next(_possible_moves(state, target, have.mesh))
        layout = _append(moves, kind, axis, layout, _layout(state, layout, fixed))
    return layout


def _possible_moves(state: _State, target: _State, mesh: Mesh) -> Iterator[tuple[MoveKind, str, _State]]:
    """The moves that bring a state nearer to the target, the best first; there is one as long as they differ."""
    moving = [
        axis for axis in mesh.axes if _place(state, axis) != _place(target, axis) or _misplaced(state, target, axis)
    ]
    for kind in ("slice", "reduce_scatter", "all_to_all"):
        for axis in moving:
            dim = target.dim_of(axis)
            if dim is not None and _can_enter(state, target, axis, dim) and _kind_of_entry(state, axis) == kind:
                yield kind, axis, state.divided(axis, dim)
    for axis in moving:
        if axis in state.pending and target.dim_of(axis) is None:
            yield "all_reduce", axis, state.without(axis)
    for axis in reversed(moving):
        if _is_innermost(state, axis):
            yield "all_gather", axis, state.without(axis)
    for axis in moving:
        if axis in state.pending:
            yield "all_reduce", axis, state.without(axis)
    for axis in moving:
        if state.dim_of(axis) is None and axis not in state.pending and axis in target.pending:
            yield "split_pending", axis, state.made_pending(axis, target.pending[axis])


def _place(state: _State, axis: str) -> object:
    return (state.dim_of(axis), state.pending.get(axis))


def _misplaced(state: _State, target: _State, axis: str) -> bool:
    """Whether an axis divides the right dim, but not below the axes that it should be below of."""
    dim = state.dim_of(axis)
    if dim is None:
        return False
    upto = state.orders[dim].index(axis) + 1
    return state.orders[dim][:upto] != target.orders[dim][:upto]


def _can_enter(state: _State, target: _State, axis: str, dim: int) -> bool:
    """Whether ``axis`` may become the innermost axis of ``dim`` now."""
    here = state.dim_of(axis)
    entered = (*state.orders[dim], axis)
    free = here is None or (here != dim and _is_innermost(state, axis))
    return free and target.orders[dim][: len(entered)] == entered


def _kind_of_entry(state: _State, axis: str) -> MoveKind:
    if axis in state.pending:
        return "reduce_scatter"
    return "slice" if state.dim_of(axis) is None else "all_to_all"


def _is_innermost(state: _State, axis: str) -> bool:
    return any(order and order[-1] == axis for order in state.orders)


# --- between layouts and states -----------------------------------------------------------------


def opaque_dims(layout: Layout) -> frozenset[int]:
    """The dims whose division no order of axes describes."""
    opaque = set()
    for dim in range(len(layout.global_shape)):
        splits = layout.splits(dim)
        strided = any(split.split_factor != 1 for split in splits)
        uneven = any(split.axis in layout.uneven_axes for split in splits)
        if split_order(splits) is None or (strided and uneven):
            opaque.add(dim)
    return frozenset(opaque)


def _same_dims(have: Layout, need: Layout) -> frozenset[int]:
    return frozenset(dim for dim in range(len(have.global_shape)) if have.splits(dim) == need.splits(dim))


def _block_axes(layout: Layout, dims: frozenset[int]) -> list[str]:
    """The axes to take off, last on the mesh first, until an order of axes describes each of these dims."""
    axes: list[str] = []
    while blocked := opaque_dims(layout) & dims:
        axis = [split.axis for dim in blocked for split in layout.splits(dim)][-1]
        axes.append(axis)
        layout = _placed(layout, axis, Replicate())
    return axes


def _placed(layout: Layout, axis: str, placement: Placement) -> Layout:
    placements = list(layout.placements)
    placements[layout.mesh.axis_index(axis)] = placement
    return layout.with_placements(placements)


def _state(layout: Layout, fixed: frozenset[int]) -> _State:
    orders = tuple(
        () if dim in fixed else split_order(layout.splits(dim)) or () for dim in range(len(layout.global_shape))
    )
    return _State(orders, dict(layout.pending))


def _layout(state: _State, like: Layout, fixed: frozenset[int]) -> Layout:
    """The layout of a state; the axes of ``fixed`` dims keep their placements."""
    mesh = like.mesh
    kept = {split.axis for dim in fixed for split in like.splits(dim)}
    placements: list[Placement] = []
    for axis, placement in zip(mesh.axes, like.placements, strict=True):
        dim = state.dim_of(axis)
        if axis in kept:
            placements.append(placement)
        elif axis in state.pending:
            placements.append(Partial(state.pending[axis]))
        elif dim is None:
            placements.append(Replicate())
        else:
            placements.append(_shard(dim, axis, state.orders[dim], mesh))
    return like.with_placements(placements)


def _shard(dim: int, axis: str, order: tuple[str, ...], mesh: Mesh) -> Placement:
    divisions = [Split(each, mesh.axis_size(each)) for each in order]
    on_mesh = sorted(divisions, key=lambda split: mesh.axis_index(split.axis))
    factor = order_factor(divisions[order.index(axis)], divisions, on_mesh)
    return Shard(dim) if factor == 1 else StridedShard(dim, split_factor=factor)
