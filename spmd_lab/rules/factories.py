"""Operators without tensor arguments: every rank makes the whole tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.errors import UnsupportedOperatorError
from spmd_lab.rules.plan import Plan
from spmd_lab.rules.strategies import run_operator
from spmd_lab.torch_internals.operators import is_random

if TYPE_CHECKING:
    from spmd_lab.rules.plan import OpCall

__all__ = ["plan_factory"]


def plan_factory(call: OpCall) -> Plan:
    """Plan ``full``, ``arange``, ``zeros``, ….

    Raises
    ------
    UnsupportedOperatorError
        If the operator draws random numbers.
    """
    if is_random(call.op):
        raise UnsupportedOperatorError(
            f"{call.title} draws random numbers; exact draws on a mesh are not supported yet",
            hint="draw the numbers outside and pass them in",
        )
    return Plan((), call.whole_outputs, run_operator(call))
