"""Padding by what is at the border: the dims that are not padded are independent, and elements only move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spmd_lab.rules.along import EVERY_KIND, LINEAR, leading, pending_ways, plan_along

if TYPE_CHECKING:
    from collections.abc import Callable

    from spmd_lab.rules.plan import OpCall, Plan

__all__ = ["RULES"]

aten = torch.ops.aten


def plan_padding(call: OpCall) -> Plan:
    """Plan ``reflection_pad2d(self, padding)`` and its like."""
    labels = leading(call.has[0].global_shape, but=len(call.argument("padding")) // 2)
    return plan_along(call, [labels], [labels], more=pending_ways(call, [call.tensors], EVERY_KIND))


def plan_padding_backward(call: OpCall) -> Plan:
    """Plan ``reflection_pad2d_backward(grad_output, self, padding)``: the padded tensor is not read."""
    labels = leading(call.has[0].global_shape, but=len(call.argument("padding")) // 2)
    pending = pending_ways(call, [call.tensors[:1]], LINEAR, unread=[1])
    return plan_along(call, [labels, labels], [labels], more=pending)


_FORWARD = tuple(getattr(aten, f"{kind}_pad{count}d") for kind in ("reflection", "replication") for count in (1, 2, 3))
_BACKWARD = tuple(getattr(aten, f"{packet.__name__}_backward") for packet in _FORWARD)

RULES: dict[object, Callable[[OpCall], Plan]] = {
    **{packet.default: plan_padding for packet in _FORWARD},
    **{packet.default: plan_padding_backward for packet in _BACKWARD},
}
