"""Sharding rules: for each operator, the layouts that it needs and gives, and the program that a rank runs.

One family a file. An operator that none of them knows is asked of torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.errors import ExpansionError
from spmd_lab.rules import (
    assertions,
    attention,
    batch_norm,
    contractions,
    convolution,
    distances,
    elementwise,
    embedding,
    embedding_bag,
    group_norm,
    identity,
    indexing,
    interpolation,
    layer_norm,
    losses,
    matrices,
    mean_losses,
    padding,
    patches,
    pooling,
    positions,
    softmax,
    statistics,
    vector_norm,
    views,
    windows,
)
from spmd_lab.rules.checking import misfit
from spmd_lab.rules.factories import plan_factory
from spmd_lab.rules.plan import OpCall, Plan, TensorArg
from spmd_lab.rules.random import plan_draw
from spmd_lab.rules.registered import UserRule, registered_rule
from spmd_lab.rules.stock import plan_by_stock_rule
from spmd_lab.rules.strategies import Way, choose_ways
from spmd_lab.torch_internals.operators import is_random

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OpCall", "Plan", "TensorArg", "Way", "choose_ways", "plan_call", "registered_rule"]

_FAMILIES = (
    assertions,
    attention,
    batch_norm,
    contractions,
    convolution,
    distances,
    elementwise,
    embedding,
    embedding_bag,
    group_norm,
    identity,
    indexing,
    interpolation,
    layer_norm,
    losses,
    matrices,
    mean_losses,
    padding,
    patches,
    pooling,
    positions,
    softmax,
    statistics,
    vector_norm,
    views,
    windows,
)
_RULES: dict[object, Callable[[OpCall], Plan]] = {op: rule for family in _FAMILIES for op, rule in family.RULES.items()}


def plan_call(call: OpCall) -> Plan:
    """Plan one call of an operator.

    Where there is no rule for it, or none that can be trusted, everything is gathered and the plan says why.

    Raises
    ------
    ExpansionError
        If a rule says one thing of the shards, and its local program does another.
    """
    rule = registered_rule(call.op) or _RULES.get(call.op) or (plan_draw if is_random(call.op) else None)
    if rule is None:
        return plan_by_stock_rule(call) if call.tensors else plan_factory(call)
    plan = rule(call)
    problem = misfit(call, plan)
    if problem is not None:
        raise ExpansionError(
            f"the rule {_name(rule)} for {call.title} is wrong: {problem}",
            layouts={f"tensor {tensor.index}": tensor.layout for tensor in call.tensors},
            hint="other layouts for what it reads; this is a mistake of the rule, not of your program",
        )
    return plan


def _name(rule: Callable[[OpCall], Plan]) -> str:
    if isinstance(rule, UserRule):
        return "that is registered"
    return f"{rule.__module__}.{rule.__name__}"
