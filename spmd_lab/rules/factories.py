"""Operators without tensor arguments: every rank makes the whole tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.rules.plan import Plan
from spmd_lab.rules.strategies import run_operator

if TYPE_CHECKING:
    from spmd_lab.rules.plan import OpCall

__all__ = ["plan_factory"]


def plan_factory(call: OpCall) -> Plan:
    """Plan ``full``, ``arange``, ``zeros``, …."""
    return Plan((), call.whole_outputs, run_operator(call))
