"""Runs an operator in every way that its rule offers, on one axis and on two, against the whole."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import spmd_lab as sl
from spmd_lab.expand.subgraph import forget_subgraphs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    import pytest
    import torch

    from spmd_lab.rules import OpCall, Plan
    from spmd_lab.rules.strategies import Way

__all__ = ["run_every_way"]


def run_every_way(
    monkeypatch: pytest.MonkeyPatch, family: ModuleType, op: Callable[..., object], tensors: Sequence[torch.Tensor]
) -> int:
    """Run ``op`` divided over four ranks in each way, and over two times two in each pair of ways; count the runs.

    Parameters
    ----------
    family : module
        Whose rule plans the operator.
    op : callable
        Calls the one operator on the tensors, in the order of the operator's arguments.
    """
    traced = sl.trace(op, *tensors, backward=False)
    runs = 0
    ways = _offered(monkeypatch, family, traced)
    assert ways
    for mesh in (sl.Mesh(x=4), sl.Mesh(x=2, y=2)):
        for taken in itertools.product(ways, repeat=mesh.ndim):
            _run(traced, mesh, taken)
            runs += 1
    return runs


def _offered(monkeypatch: pytest.MonkeyPatch, family: ModuleType, traced: sl.TracedGraph) -> list[Way]:
    """The ways that the rule offers on a mesh of two times two."""
    offered: list[Way] = []
    choose = family.choose_ways

    def listening(call: OpCall, ways: Sequence[Way], *rest: Any, **options: Any) -> Plan:
        offered.extend(ways)
        return choose(call, ways, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(family, "choose_ways", listening)
        forget_subgraphs()
        sl.expand(traced, sl.Mesh(x=2, y=2))
    return offered


def _run(traced: sl.TracedGraph, mesh: sl.Mesh, taken: tuple[Way, ...]) -> None:
    names = [found.name for found in traced.inputs]
    inputs = {name: [way.needs[index] for way in taken] for index, name in enumerate(names)}
    expansion = sl.expand(traced, mesh, inputs=inputs, pending="keep", unsupported="error")
    (step,) = [step for step in expansion.steps if not step.name.startswith("resolve:")]
    assert [operand.redistribution for operand in step.operands] == [None] * len(names)
    for index, layout in enumerate(step.outputs):
        assert layout is None or list(layout.placements) == [way.outputs[index] for way in taken]
    report = expansion.program.verify()
    assert report.ok, f"{step.op} with {inputs}:\n{report}"
