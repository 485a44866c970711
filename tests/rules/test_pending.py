"""A pending reduction passes only what commutes with it: operators on pending inputs of every kind equal the whole."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.tensor import Partial, Replicate, Shard

import spmd_lab as sl

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.distributed.tensor.placement_types import Placement

KINDS = ("sum", "avg", "max", "min", "product")
MESHED = (("sum", "avg"), ("max", "max"))
SOME = (torch.arange(12) % 3 == 1).view(4, 3)

OF_ONE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "abs": torch.abs,
    "neg": torch.neg,
    "clone": torch.clone,
    "exp": torch.exp,
    "relu": torch.relu,
    "round": torch.round,
    "reciprocal": torch.reciprocal,
    "isnan": torch.isnan,
    "to bool": lambda x: x.bool(),
    "to int": lambda x: x.int(),
    "to half": lambda x: x.bfloat16(),
    "to double": lambda x: x.double(),
    "to complex": lambda x: x.to(torch.complex64),
    "plus one": lambda x: x + 1,
    "one minus": lambda x: 1 - x,
    "times two": lambda x: x * 2,
    "times minus two": lambda x: x * -2,
    "divided by minus two": lambda x: x / -2,
    "divided and rounded": lambda x: x // 2,
    "one divided by": lambda x: 1 / x,
    "to the power of one": lambda x: x**1,
    "square": lambda x: x**2,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "compared": lambda x: x > 0,
    "times itself": lambda x: x * x,
    "plus itself": lambda x: x + x,
    "minus itself": lambda x: x - 2 * x,
    "plus in place": lambda x: x.clone().add_(1),
    "times itself in place": lambda x: (lambda y: y.mul_(y))(x.clone()),
    "filled in part": lambda x: x.masked_fill(SOME, 2.0),
    "or zero": lambda x: torch.where(SOME, x, 0.0),
    "or one": lambda x: torch.where(SOME, x, 1.0),
    "sum": torch.sum,
    "sum of rows": lambda x: x.sum(0),
    "sum of integers": lambda x: torch.sum(x, dtype=torch.int64),
    "mean": torch.mean,
    "mean of rows": lambda x: x.mean(0),
    "amax": torch.amax,
    "amin of rows": lambda x: x.amin(0),
    "prod": torch.prod,
    "var": torch.var,
    "argmax": torch.argmax,
    "norm": torch.norm,
    "cumsum": lambda x: x.cumsum(0),
    "sort": lambda x: x.sort()[0],
    "softmax": lambda x: x.softmax(1),
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "copied into integers": lambda x: torch.zeros(4, 3, dtype=torch.int32).copy_(x),
    "linear": lambda x: F.linear(x, torch.ones(2, 3), torch.ones(2)),
    "gram matrix": lambda x: x @ x.t(),
    "padded by zeros": lambda x: F.pad(x, (1, 1)),
    "padded by ones": lambda x: F.pad(x, (1, 1), value=1.0),
    "beside ones": lambda x: torch.cat([x, torch.ones(2, 3)]),
    "beside itself": lambda x: torch.cat([x, x]),
    "flip": lambda x: x.flip(0),
    "transposed view": lambda x: x.t().reshape(-1),
    "read at positions": lambda x: x[torch.tensor([1, 2])],
    "set at a position": lambda x: x.index_put((torch.tensor([1]),), torch.tensor(1.0)),
    "one row set": lambda x: x.select_scatter(torch.ones(3), 0, 0),
    "ones like it": torch.ones_like,
}

OF_TWO: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "addcmul": lambda x, y: torch.addcmul(x, y, y),
    "where": lambda x, y: torch.where(SOME, x, y),
    "where one is large": lambda x, y: torch.where(x > 0, x, y),
    "cat": lambda x, y: torch.cat([x, y]),
    "mm": lambda x, y: x @ y.t(),
    "added at positions": lambda x, y: x.index_put((torch.arange(4),), y, True),
}


def prove(traced: sl.TracedGraph, mesh: sl.Mesh, *inputs: Sequence[Placement]) -> None:
    report = sl.expand(traced, mesh, inputs=[list(each) for each in inputs]).program.verify()
    assert report.ok, f"{inputs}:\n{report}"


@pytest.mark.parametrize("name", OF_ONE)
def test_an_operator_of_one_pending_tensor(name: str) -> None:
    traced = sl.trace(OF_ONE[name], torch.randn(4, 3))
    for kind in KINDS:
        prove(traced, sl.Mesh(x=4), [Partial(kind)])
    for kinds in MESHED:
        prove(traced, sl.Mesh(x=2, y=2), [Partial(kind) for kind in kinds])


@pytest.mark.parametrize("name", OF_TWO)
def test_an_operator_of_two_tensors_of_which_one_is_pending_or_both(name: str) -> None:
    traced = sl.trace(OF_TWO[name], torch.randn(4, 3), torch.randn(4, 3))
    for kind in KINDS:
        prove(traced, sl.Mesh(x=4), [Partial(kind)], [Replicate()])
        prove(traced, sl.Mesh(x=4), [Replicate()], [Partial(kind)])
        prove(traced, sl.Mesh(x=4), [Partial(kind)], [Shard(0)])
        prove(traced, sl.Mesh(x=4), [Partial(kind)], [Partial(kind)])
    for one, other in itertools.permutations(("sum", "avg", "max"), 2):
        prove(traced, sl.Mesh(x=4), [Partial(one)], [Partial(other)])


ROUNDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cast": lambda x: x.bfloat16(),
    "copied": lambda x: torch.zeros(4, 3, dtype=torch.bfloat16).copy_(x),
    "added in place": lambda x: torch.zeros(4, 3, dtype=torch.bfloat16).add_(x),
    "filled": lambda x: torch.zeros(4, 3, dtype=torch.bfloat16).fill_(x.sum()),
    "summed": lambda x: x.sum(0, dtype=torch.bfloat16),
    "mean": lambda x: x.mean(0, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_a_sum_is_rounded_as_a_whole(name: str) -> None:
    """Its large pieces would cancel to noise once each is rounded; a largest value is the same either way."""
    traced = sl.trace(ROUNDED[name], torch.randn(4, 3))
    mesh = sl.Mesh(x=4)
    for kind in ("sum", "avg"):
        steps = sl.expand(traced, mesh, inputs=[[Partial(kind)]]).steps
        narrow = [layout for step in steps for layout in step.outputs if layout and layout.dtype is torch.bfloat16]
        assert narrow
        assert not any(layout.is_pending for layout in narrow)


def test_the_bits_of_a_sum_are_those_of_the_whole() -> None:
    traced = sl.trace(lambda x: x.view(torch.int32), torch.randn(4, 3))
    (bits, *_) = sl.expand(traced, sl.Mesh(x=4), inputs=[[Partial()]]).steps
    assert not bits.operands[0].need.is_pending


def test_a_largest_value_and_a_widened_sum_stay_pending() -> None:
    mesh = sl.Mesh(x=4)
    for kind, before, after in (("max", torch.float32, torch.bfloat16), ("sum", torch.bfloat16, torch.float32)):
        traced = sl.trace(lambda x, to=after: x.to(to), torch.randn(4, 3).to(before))
        (cast, _) = sl.expand(traced, mesh, inputs=[[Partial(kind)]]).steps
        assert cast.outputs[0].pending == {"x": kind}


def test_a_largest_value_and_a_sum_are_not_pending_at_once() -> None:
    """Of two axes, one would let its reduction pass, and the other leave a sum: their order would matter."""
    x, index = torch.randn(4, 3), torch.tensor([1, 2])
    traced = sl.trace(lambda x, i: x[i].triu().sum(1).diag_embed(), x, index)
    prove(traced, sl.Mesh(x=2, y=2), [Partial("max"), Shard(1)], [Replicate(), Replicate()])
    traced = sl.trace(lambda x, y: x @ y, torch.randn(4, 3), torch.randn(3, 2))
    for kind in KINDS:
        prove(traced, sl.Mesh(x=2, y=2), [Partial(kind), Shard(1)], [Replicate(), Shard(0)])
    traced = sl.trace(torch.mv, torch.randn(4, 3), torch.randn(3))
    for kind in KINDS:
        prove(traced, sl.Mesh(x=2, y=2), [Partial(kind), Shard(1)], [Replicate(), Shard(0)])
