"""Operators told by which dims go together: each dim has a label, and what has one label may be divided together.

A label is anything hashable; dims without one (None) stay whole. A label of tensors that no output has is summed over.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.rules.never_empty import Shards, never_empty
from spmd_lab.rules.strategies import Way, choose_ways, pick

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

    from torch import fx
    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.rules.plan import OpCall, Plan, TensorArg

__all__ = ["EVERY_KIND", "LINEAR", "leading", "pending_ways", "plan_along", "under", "ways_along"]

LINEAR = ("sum", "avg")
"""The pending reductions that pass through an operator that is linear."""

EVERY_KIND = ("sum", "avg", "max", "min", "product")
"""Those that pass through an operator that only moves elements."""


def leading(shape: Sequence[int], but: int = 0) -> list[int | None]:
    """Labels for the dims of a tensor, but for its last ones.

    Examples
    --------
    >>> leading((5, 4, 3), but=1)
    [0, 1, None]
    """
    return [dim if dim < len(shape) - but else None for dim in range(len(shape))]


def under(shape: Sequence[int], full: Sequence[int], but: int = 0) -> list[int | None]:
    """Labels of a tensor that is broadcast to a shape, counted from the last dim; stretched dims have none.

    Examples
    --------
    >>> under((4, 1, 3), (5, 4, 2, 3)), under((4, 1, 3), (5, 4, 2, 3), but=1)
    ([-3, None, -1], [-3, None, None])
    """
    return [
        back if back < -but and full[back] == shape[back] and shape[back] != 1 else None
        for back in range(-len(shape), 0)
    ]


def ways_along(
    call: OpCall,
    tensors: Sequence[Sequence[Hashable | None]],
    outputs: Sequence[Sequence[Hashable | None]],
    added: Collection[int] = (),
) -> list[Way]:
    """One way for each label.

    Parameters
    ----------
    call : OpCall
        The call.
    tensors, outputs : sequence of labels
        One label per dim, for each tensor of the call and each output.
    added : collection of int
        The tensors that are added once to what is summed over a label: they have to be pending too.
    """
    labels = dict.fromkeys(label for each in tensors for label in each if label is not None)
    ways = []
    for label in labels:
        is_summed = not any(label in each for each in outputs)
        rest = {True: Partial(), False: Replicate()}
        needs = tuple(
            Shard(list(each).index(label)) if label in each else rest[is_summed and index in added]
            for index, each in enumerate(tensors)
        )
        made = tuple(Shard(list(each).index(label)) if label in each else rest[is_summed] for each in outputs)
        ways.append(Way(needs, made))
    return ways


def pending_ways(
    call: OpCall, groups: Iterable[Iterable[TensorArg]], kinds: Sequence[str] = LINEAR, unread: Collection[int] = ()
) -> list[Way]:
    """Ways in which the tensors of a group are pending together, and so is every output.

    Parameters
    ----------
    groups : iterable of tensors
        The operator is linear in those of one group, taken together.
    kinds : sequence of str
        The reductions that it commutes with.
    unread : collection of int
        Tensors of which only the shape is read: they may be pending or not.
    """
    ways = []
    for group in groups:
        pends = {tensor.index for tensor in group}
        for kind in kinds:
            for others in dict.fromkeys([(), tuple(unread)]):
                held: dict[int, Placement] = dict.fromkeys([*pends, *others], Partial(kind))
                needs = tuple(held.get(tensor.index, Replicate()) for tensor in call.tensors)
                ways.append(Way(needs, (Partial(kind),) * len(call.results)))
    return ways


def plan_along(
    call: OpCall,
    tensors: Sequence[Sequence[Hashable | None]],
    outputs: Sequence[Sequence[Hashable | None]],
    *,
    added: Collection[int] = (),
    more: Sequence[Way] = (),
    run: Callable[[LocalGraphBuilder, Shards], fx.Node | tuple[fx.Node | None, ...]] | None = None,
) -> Plan:
    """Plan an operator along its labels; it never runs on empty shards.

    Parameters
    ----------
    more : sequence of Way
        Further ways, as `pending_ways` gives them.
    run : callable, optional
        The local program, as `never_empty` takes it; by default the operator itself.
    """
    plan = choose_ways(call, [*ways_along(call, tensors, outputs, added), *more], any_order=True)

    def itself(builder: LocalGraphBuilder, shards: Shards) -> fx.Node:
        return builder.call(call.op, *pick(call.args, shards.nodes), **pick(call.kwargs, shards.nodes))

    return replace(plan, emit=never_empty(plan.needs, plan.outputs, run or itself))
