"""Sharding rules: for each operator, the layouts that it needs and gives, and the program that a rank runs.

One family a file. An operator that none of them knows is asked of torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.rules import attention, embedding, identity, losses, mean_losses
from spmd_lab.rules.factories import plan_factory
from spmd_lab.rules.plan import OpCall, Plan, TensorArg
from spmd_lab.rules.stock import plan_by_stock_rule, plan_whole

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OpCall", "Plan", "TensorArg", "plan_call", "plan_whole"]

_FAMILIES = (attention, embedding, identity, losses, mean_losses)
_RULES: dict[object, Callable[[OpCall], Plan]] = {op: rule for family in _FAMILIES for op, rule in family.RULES.items()}


def plan_call(call: OpCall) -> Plan:
    """Plan one call of an operator.

    Raises
    ------
    UnsupportedOperatorError
        If there is no rule for it.
    """
    if not call.tensors:
        return plan_factory(call)
    return _RULES.get(call.op, plan_by_stock_rule)(call)
