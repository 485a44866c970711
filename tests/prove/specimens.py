"""Right programs of different kinds, each with something of its own that can be made wrong."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Partial

import spmd_lab as sl
from spmd_lab.demo import GPT, expand_demo
from tests.prove.mutants import Perceptron, attention, perceptron, uneven, weighted

if TYPE_CHECKING:
    from collections.abc import Callable


def _built(model: Any, *args: torch.Tensor, mesh: sl.Mesh, loss: Callable[[Any], Any] | None, **how: Any) -> sl.Program:
    return sl.rebuild(sl.expand(sl.trace(model, *args, loss=loss, backward=how.pop("backward", True)), mesh, **how))


@cache
def data_parallel() -> sl.Program:
    """A perceptron, its batch over four ranks: nothing but gradients to be added up."""
    torch.manual_seed(0)
    return _built(Perceptron(8), torch.randn(8, 8), mesh=sl.Mesh(dp=4), loss=weighted, batch="dp")


@cache
def gpt() -> sl.Program:
    """The GPT of the demo: a block, heads and matrices over ``tp``, the batch over ``dp``."""
    torch.manual_seed(0)
    model = GPT(layers=1, width=16, heads=4, vocabulary=32, length=8)
    return sl.rebuild(expand_demo(sl.Mesh(dp=2, tp=2), model, vocabulary=32, batch=4, length=8))


class Tied(nn.Module):
    """A vocabulary that is read on the way in, and multiplied with on the way out."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.table, self.mid = nn.Embedding(vocabulary, width), nn.Linear(width, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.linear(self.mid(self.table(tokens)).tanh(), self.table.weight)


@cache
def vocabulary() -> sl.Program:
    """An embedding whose vocabulary is divided, uneven: each rank masks what is not its own."""
    torch.manual_seed(0)
    tokens = torch.arange(12).reshape(3, 4).mul(7) % 10
    targets = tokens.flatten().roll(1)
    return _built(
        Tied(10, 6),
        tokens,
        mesh=sl.Mesh(tp=4),
        loss=lambda out: F.cross_entropy(out.flatten(0, 1), targets),
        params={"table.weight": "v/tp w"},
    )


@cache
def means() -> sl.Program:
    """Means over uneven rows, some of which are ignored or weigh more than others."""
    torch.manual_seed(0)
    targets = torch.tensor([0, 1, -100, 2, 2, 3, -100])
    weight = torch.tensor([0.1, 1.0, 5.0, 20.0])
    wanted = torch.randn(7, 4)

    def loss(out: torch.Tensor) -> torch.Tensor:
        scored = F.cross_entropy(out, targets, weight=weight, ignore_index=-100)
        return scored + F.mse_loss(out, wanted) + F.smooth_l1_loss(out, wanted) + out.var(0).mean()

    return _built(nn.Linear(5, 4), torch.randn(7, 5), mesh=sl.Mesh(dp=4), loss=loss, batch="dp")


class Pictures(nn.Module):
    """Convolutions with both kinds of norm that look beyond a picture or a channel."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.batch, self.group = nn.BatchNorm2d(8), nn.GroupNorm(2, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.group(self.two(self.batch(self.one(x)).relu())).mean((2, 3))


@cache
def pictures() -> sl.Program:
    """Pictures over ``dp``, uneven; the channels of a convolution over ``tp``."""
    torch.manual_seed(0)
    params = {"one.weight": "o/tp i h w", "one.bias": "o/tp"}
    return _built(
        Pictures(), torch.randn(3, 3, 6, 6), mesh=sl.Mesh(dp=2, tp=2), loss=weighted, params=params, batch="dp"
    )


@cache
def kept_pending() -> sl.Program:
    """Products whose sums stay pending, on one axis and on both."""
    torch.manual_seed(0)
    a, b, c = torch.randn(6, 8), torch.randn(8, 4), torch.randn(8, 4)

    def products(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        first = a @ b
        return first, first * 2 + a @ c, (a @ c).relu()

    inputs = {"a": "m k/dp/tp", "b": "k/dp/tp n", "c": "k/dp n"}
    return _built(products, a, b, c, mesh=sl.Mesh(dp=2, tp=2), loss=None, inputs=inputs, pending="keep", backward=False)


@cache
def given_pending() -> sl.Program:
    """Inputs that arrive as pieces of a sum, of a mean and of a maximum, before a ReLU and others."""
    torch.manual_seed(0)
    x, y, z = torch.randn(4, 6), torch.randn(4, 6), torch.randn(4, 6)

    def mixed(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.relu() + y.exp(), z.sigmoid() * x, torch.where(z > 0, y, 1.0)

    inputs = {"x": [Partial("sum")], "y": [Partial("avg")], "z": [Partial("max")]}
    return _built(mixed, x, y, z, mesh=sl.Mesh(tp=3), loss=None, inputs=inputs, backward=False)


@cache
def shards_moved() -> sl.Program:
    """Layouts that change their dim on the way: all-to-all, gather along a later dim, slices, both orders of axes."""
    torch.manual_seed(0)
    x = torch.randn(8, 8, 8)

    def scan(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores = x.softmax(1)
        return scores, (scores @ x).cumsum(2), x.flip(0), x.transpose(0, 2)

    outputs = {"out[0]": "a b/tp c", "out[1]": "a/tp/dp b c", "out[2]": "a b/dp c/tp", "out[3]": "a b c/dp"}
    return _built(
        scan,
        x,
        mesh=sl.Mesh(dp=2, tp=2),
        loss=None,
        inputs={"x": "a/dp b/tp c"},
        outputs=outputs,
        backward=False,
    )


@cache
def divided_at_rest() -> sl.Program:
    """Parameters that rest divided over ``dp``, also below ``tp``: gathered in each phase, gradients scattered."""
    torch.manual_seed(0)
    params = sl.colwise("up", axis="tp") | sl.rowwise("down", axis="tp")
    stored = sl.fsdp("dp")
    model, mesh = nn.Sequential(nn.Linear(8, 8), Perceptron(8)), sl.Mesh(dp=2, tp=2)
    rules = {f"1.{name}": style for name, style in params.items()}
    return _built(model, torch.randn(8, 8), mesh=mesh, loss=weighted, batch="dp", params=rules, stored=stored)


@cache
def zeros() -> sl.Program:
    """Reductions of nothing but zeros, and of terms that cancel: no number shows that one is missing."""
    torch.manual_seed(0)
    x = torch.randn(2, 8).repeat_interleave(4, 0) * torch.tensor([1.0, -1.0]).repeat(4)[:, None]

    def loss(out: torch.Tensor) -> torch.Tensor:
        return (out[:, 0].sum() + (out[:, 1:] * 0).sum()).square()

    return _built(nn.Linear(8, 4, bias=False), x, mesh=sl.Mesh(dp=4), loss=loss, batch="dp")


SPECIMENS: dict[str, Callable[[], sl.Program]] = {
    build.__name__: build
    for build in (
        data_parallel,
        perceptron,
        attention,
        uneven,
        gpt,
        vocabulary,
        means,
        pictures,
        kept_pending,
        given_pending,
        shards_moved,
        divided_at_rest,
        zeros,
    )
}
