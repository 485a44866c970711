"""A rule whose local program does not give what it says is found out before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch._decomp import decomposition_table
from torch.distributed.tensor import Replicate, Shard

import spmd_lab as sl
from spmd_lab import rules
from spmd_lab.errors import ExpansionError
from spmd_lab.rules.strategies import Way, choose_ways
from spmd_lab.torch_internals import sharding

if TYPE_CHECKING:
    from collections.abc import Callable

    from spmd_lab.rules import OpCall, Plan

aten = torch.ops.aten


def expanded(fn: Callable[..., object], *shape: int, **placing: object) -> sl.Expansion:
    return sl.spmd_expand(fn, torch.rand(shape), mesh=sl.Mesh(x=4), **placing)


def plan_flip_wrongly(call: OpCall) -> Plan:
    """Says that a division of dim 0 comes out as one of dim 1."""
    return choose_ways(call, [Way((Shard(0),), (Shard(1),))])


@pytest.mark.parametrize("rows", [8, 5])
def test_a_rule_of_ours_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setitem(rules._RULES, aten.flip.default, plan_flip_wrongly)
    with pytest.raises(ExpansionError) as caught:
        expanded(lambda x: x.flip(1), rows, 4, batch="x")
    text = str(caught.value)
    shard = -(-rows // 4)
    assert f"plan_flip_wrongly for aten.flip.default is wrong: output 0 of rank 0 has shape [{shard}, 4]" in text
    assert f"not [{rows}, 1] as f32[{rows}, 4/x] says" in text
    assert "node: flip" in text
    assert f"layout: x: f32[{rows}/x, 4]" in text


def test_every_size_of_shard_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(call: OpCall) -> Plan:
        """Right where shards are as long as on the first rank."""
        length = call.has[0].local_shape(0)[0]
        emit = lambda builder, nodes: builder.call(aten.new_zeros.default, nodes[0], [length, 4])  # noqa: E731
        return choose_ways(call, [Way((Shard(0),), (Shard(0),))], emit)

    monkeypatch.setitem(rules._RULES, aten.flip.default, plan)
    expanded(lambda x: x.flip(1), 8, 4, batch="x")
    with pytest.raises(ExpansionError, match="output 0 of rank 2 has shape"):
        expanded(lambda x: x.flip(1), 5, 4, batch="x")


def test_a_wrong_rule_of_torch_is_replaced_by_gathering(monkeypatch: pytest.MonkeyPatch) -> None:
    def says_dim_1(op: object, args: tuple[object, ...], *rest: object) -> sharding.StockAnswer:
        return sharding.StockAnswer(((Shard(0),),), ((Shard(1),),), op, args, {})

    monkeypatch.setattr("spmd_lab.rules.stock.ask_stock_rule", says_dim_1)
    (step,) = expanded(lambda x: x.flip(1), 12, 4, batch="x").steps
    assert (step.fallback or "").startswith("torch's rule for aten.flip.default is wrong here: output 0 of rank 0")
    assert step.outputs[0] is not None
    assert step.outputs[0].placements == (Replicate(),)


def test_a_propagation_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator whose decomposition asks about itself again and again."""
    monkeypatch.setattr(sharding, "_MOST_NESTED", 50)
    op = torch.ops.spmd_lab_tests.endless.default

    def endless(x: torch.Tensor) -> torch.Tensor:
        while True:
            x = aten.neg.default(x)

    monkeypatch.setitem(decomposition_table, op, endless)
    (step,) = expanded(lambda x: op(x), 8, 4, batch="x", backward=False).steps
    assert "asks about more than 50 operators and does not end" in (step.fallback or "")


@torch.library.custom_op("spmd_lab_tests::endless", mutates_args=())
def _endless(x: torch.Tensor) -> torch.Tensor:
    return x.flip(0)


@_endless.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)
