"""Reading and adding by tensors of positions: free dims are independent, and so are the positions themselves.

What is added at divided positions is a pending sum on a target that every rank has whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from spmd_lab.rules.along import EVERY_KIND, LINEAR, pending_ways, plan_along, under

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from spmd_lab.rules.plan import OpCall, Plan, TensorArg

__all__ = ["RULES"]

aten = torch.ops.aten


class _Indexed(NamedTuple):
    """A tensor that is indexed, and what comes out: labels, and the shapes of positions and of what comes out."""

    this: list[Hashable | None]
    out: list[Hashable | None]
    positions: tuple[int, ...]
    shape: tuple[int, ...]

    def under_positions(self, tensor: TensorArg) -> list[Hashable | None]:
        """Labels of a tensor that is stretched to the positions."""
        return [*under(tensor.layout.global_shape, self.positions)]

    def under_out(self, tensor: TensorArg) -> list[Hashable | None]:
        """Labels of a tensor that is stretched to what comes out."""
        return [None if back is None else self.out[back] for back in under(tensor.layout.global_shape, self.shape)]


def plan_index(call: OpCall) -> Plan:
    """Plan ``index(self, indices)``, and the same with a mask of what to read."""
    indices, found = call.argument("indices"), _indexed(call)
    if found is None:
        return _plan_whole(call)
    by_index = {each.index: found.under_positions(each) for each in indices if each is not None}
    by_index[call.argument("self").index] = found.this
    labels = [by_index.get(tensor.index) or found.under_out(tensor) for tensor in call.tensors]
    kinds = EVERY_KIND if call.op is aten.index.Tensor else ()
    return plan_along(call, labels, [found.out], more=pending_ways(call, [[call.argument("self")]], kinds))


def plan_index_put(call: OpCall) -> Plan:
    """Plan ``index_put(self, indices, values, accumulate)``, and the same with a mask of what to add."""
    this, values, indices = (call.argument(name) for name in ("self", "values", "indices"))
    more, found = pending_ways(call, [[this, values]], LINEAR), _indexed(call)
    if found is None:
        return _plan_masked_put(call)
    by_index = {each.index: found.under_positions(each) for each in indices if each is not None}
    by_index[this.index] = found.this
    labels = [by_index.get(tensor.index) or found.under_out(tensor) for tensor in call.tensors]
    is_added = call.op is not aten.index_put.default or call.argument("accumulate")
    kept = {label for label in labels[values.index] if is_added or label in found.this} | set(found.this)
    labels = [[label if label in kept else None for label in each] for each in labels]
    return plan_along(call, labels, [found.this], added=[this.index], more=more)


def _plan_masked_put(call: OpCall) -> Plan:
    """One value where a mask says so: the mask is divided as the tensor is."""
    this, values, indices = (call.argument(name) for name in ("self", "values", "indices"))
    masks = [(dim, each) for dim, each in enumerate(indices) if each is not None]
    if len(masks) > 1 or values.layout.global_shape:
        return _plan_whole(call)
    ((first, mask),) = masks
    by_index = {
        this.index: [*range(len(this.layout.global_shape))],
        mask.index: [first + dim for dim in range(len(mask.layout.global_shape))],
        values.index: [],
    }
    labels = [by_index[tensor.index] for tensor in call.tensors]
    return plan_along(call, labels, labels[:1], more=pending_ways(call, [[this, values]], LINEAR))


def _plan_whole(call: OpCall) -> Plan:
    return plan_along(call, [[] for _ in call.tensors], [[] for _ in call.results])


def _indexed(call: OpCall) -> _Indexed | None:
    """How a tensor is indexed; None where it is by masks.

    The dims of the positions take the place of those indexed, or the first place where these do not stand together.
    """
    this, indices = call.argument("self").layout.global_shape, call.argument("indices")
    given = [each.layout for each in indices if each is not None]
    if not given or any(layout.dtype in (torch.bool, torch.uint8) for layout in given):
        return None
    positions = tuple(torch.broadcast_shapes(*(layout.global_shape for layout in given)))
    indexed = [dim for dim, each in enumerate(indices) if each is not None]
    free = [dim for dim in range(len(this)) if dim not in indexed]
    is_together = indexed == list(range(indexed[0], indexed[-1] + 1))
    before = sum(dim < indexed[0] for dim in free) if is_together else 0
    backs = list(range(-len(positions), 0))
    return _Indexed(
        [None if dim in indexed else ("dim", dim) for dim in range(len(this))],
        [*(("dim", dim) for dim in free[:before]), *backs, *(("dim", dim) for dim in free[before:])],
        positions,
        (*(this[dim] for dim in free[:before]), *positions, *(this[dim] for dim in free[before:])),
    )


def plan_index_select(call: OpCall) -> Plan:
    """Plan ``index_select(self, dim, index)``."""
    this, index = call.argument("self"), call.argument("index")
    read = _but(call, "entry")
    entries: list[Hashable | None] = ["entry" if "entry" in read else None] * len(index.layout.global_shape)
    return plan_along(call, [_but(call, None), entries], [read], more=pending_ways(call, [[this]], EVERY_KIND))


def plan_index_add(call: OpCall) -> Plan:
    """Plan ``index_add(self, dim, index, source, *, alpha)``."""
    this, index, source = call.tensors
    labels = [_but(call, None), ["entry"] * len(index.layout.global_shape), _but(call, "entry")]
    if len(source.layout.global_shape) != len(this.layout.global_shape):
        labels[2] = [None] * len(source.layout.global_shape)
    if "entry" not in labels[2]:  # a source that is not divided with its positions would be added by every rank
        labels[1] = [None] * len(index.layout.global_shape)
    more = pending_ways(call, [[this, source]], LINEAR)
    return plan_along(call, labels, labels[:1], added=[this.index], more=more)


def plan_scatter_add(call: OpCall) -> Plan:
    """Plan ``scatter_add(self, dim, index, src)``: dims along which not all are equally long stay whole."""
    this, index, source = call.tensors
    ndim = len(this.layout.global_shape)
    sizes = [{tensor.layout.global_shape[dim : dim + 1] for tensor in call.tensors} for dim in range(ndim)]
    dim = call.argument("dim") % max(ndim, 1)
    alike: list[Hashable | None] = [each if len(sizes[each]) == 1 and each != dim else None for each in range(ndim)]
    is_long = ndim > 0 and index.layout.global_shape[dim] == source.layout.global_shape[dim]
    read = [*alike[:dim], "entry", *alike[dim + 1 :]] if is_long else alike
    more = pending_ways(call, [[this, source]], LINEAR)
    return plan_along(call, [alike, read, read], [alike], added=[this.index], more=more)


def plan_take(call: OpCall) -> Plan:
    """Plan ``take(self, index)`` from the flattened tensor."""
    this, index = call.tensors
    labels = [*range(len(index.layout.global_shape))]
    whole = [None] * len(this.layout.global_shape)
    return plan_along(call, [whole, labels], [labels], more=pending_ways(call, [[this]], EVERY_KIND))


def plan_put(call: OpCall) -> Plan:
    """Plan ``put(self, index, source, accumulate)`` into the flattened tensor."""
    this, index, source = call.tensors
    is_divisible = call.argument("accumulate") and index.layout.global_shape == source.layout.global_shape
    given = [tensor.layout.global_shape for tensor in call.tensors]
    labels = [[position if is_divisible else None for position in range(len(shape))] for shape in given[1:]]
    whole = [None] * len(given[0])
    more = pending_ways(call, [[this, source]], LINEAR)
    return plan_along(call, [whole, *labels], [whole], added=[this.index], more=more)


def _but(call: OpCall, there: Hashable | None) -> Sequence[Hashable | None]:
    """A label for each dim of the first tensor, with that along ``dim`` replaced."""
    ndim = len(call.has[0].global_shape)
    indexed = call.argument("dim") % max(ndim, 1)
    return [there if dim == indexed else dim for dim in range(ndim)]


RULES: dict[object, Callable[[OpCall], Plan]] = {
    aten._unsafe_masked_index.default: plan_index,
    aten._unsafe_masked_index_put_accumulate.default: plan_index_put,
    aten.index.Tensor: plan_index,
    aten.index_add.default: plan_index_add,
    aten.index_put.default: plan_index_put,
    aten.index_select.default: plan_index_select,
    aten.put.default: plan_put,
    aten.scatter_add.default: plan_scatter_add,
    aten.take.default: plan_take,
}
