"""Operators that return what they are given: any layout goes through, pending ones too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spmd_lab.rules.plan import Plan
from spmd_lab.rules.strategies import run_operator

if TYPE_CHECKING:
    from collections.abc import Callable

    from spmd_lab.rules.plan import OpCall

__all__ = ["RULES"]

aten = torch.ops.aten


def plan_identity(call: OpCall) -> Plan:
    """Plan a call whose output lies as its input does."""
    return Plan(call.has, call.has, run_operator(call))


_IDENTITIES = (
    aten.alias.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.detach.default,
    aten.lift_fresh_copy.default,
)

RULES: dict[object, Callable[[OpCall], Plan]] = dict.fromkeys(_IDENTITIES, plan_identity)
