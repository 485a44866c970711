"""Patches of images laid out as columns, and grids of places in images: images are independent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spmd_lab.rules.along import LINEAR, pending_ways, plan_along

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.rules.never_empty import Shards
    from spmd_lab.rules.plan import OpCall, Plan

__all__ = ["RULES"]

aten = torch.ops.aten


def plan_images(call: OpCall) -> Plan:
    """Plan an operator of a batch of images that is linear in it; one image alone is needed whole."""
    batch = "image" if len(call.has[0].global_shape) == _NDIM[call.op] else None
    labels, (result,) = [batch, *[None] * (len(call.has[0].global_shape) - 1)], call.results
    assert result is not None
    made = [batch, *[None] * (result.ndim - 1)]
    return plan_along(call, [labels], [made], more=pending_ways(call, [call.tensors], LINEAR))


_NDIM: dict[object, int] = {aten.im2col.default: 4, aten.col2im.default: 3}
"""How many dims a batch has."""


def plan_affine_grid(call: OpCall) -> Plan:
    """Plan ``affine_grid_generator(theta, size, align_corners)``: the first size is how many images there are here."""
    (result,) = call.results
    assert result is not None
    more = pending_ways(call, [call.tensors], LINEAR)
    ndim = result.ndim
    size = list(call.argument("size"))

    def run(builder: LocalGraphBuilder, shards: Shards) -> fx.Node:
        here = [shards.shapes[0][0], *size[1:]]
        return builder.call(call.op, shards.nodes[0], here, call.argument("align_corners"))

    return plan_along(call, [["image", None, None]], [["image", *[None] * (ndim - 1)]], more=more, run=run)


RULES: dict[object, Callable[[OpCall], Plan]] = {
    aten.affine_grid_generator.default: plan_affine_grid,
    aten.col2im.default: plan_images,
    aten.im2col.default: plan_images,
}
