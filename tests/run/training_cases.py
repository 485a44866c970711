"""Training on real ranks: parameters after some steps equal those of a single device, and those under DDP."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Shard
from torch.utils.checkpoint import checkpoint

import spmd_lab as sl
from tests.run.on_rank import close, mine, states_equal, trained, trained_by_ddp, whole_of

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 5

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "foreach": partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True),
    "adam": partial(torch.optim.Adam, lr=0.01, foreach=False),
    "fused adam": partial(torch.optim.Adam, lr=0.01, fused=True),
    "adamw foreach": partial(torch.optim.AdamW, lr=0.01, foreach=True),
}

PLACEMENTS: dict[str, dict[str, object]] = {"replicated": {}, "sharded": {"**": [Shard(0)]}}


def stack() -> nn.Module:
    """Ten times Linear and ReLU."""
    layers = [layer for _ in range(10) for layer in (nn.Linear(100, 100), nn.ReLU())]
    return nn.Sequential(*layers).double()


def mlp() -> nn.Module:
    """A perceptron with a sigmoid."""
    return nn.Sequential(nn.Linear(50, 32), nn.Sigmoid(), nn.Linear(32, 8)).double()


def uneven() -> nn.Module:
    """A perceptron whose matrices no four ranks can divide evenly."""
    return nn.Sequential(nn.Linear(50, 30), nn.Sigmoid(), nn.Linear(30, 6)).double()


def train(make: Callable[[], nn.Module], optimizer: str, placements: str, batch: int, width: int, out: int) -> None:
    """Some steps of an optimizer."""
    model = make()
    batches = [(torch.randn(batch, width).double(), torch.randn(batch, out).double()) for _ in range(STEPS)]
    local = [(mine(x), mine(y)) for x, y in batches]
    distributed = sl.distribute(
        model,
        sl.Mesh(dp=dist.get_world_size()),
        example=batches[0][0],
        batch="dp",
        params=PLACEMENTS[placements],
    )
    single = trained(copy.deepcopy(model), OPTIMIZERS[optimizer], batches, F.mse_loss)
    ddp = trained_by_ddp(model, OPTIMIZERS[optimizer], local, F.mse_loss)
    trained(distributed, OPTIMIZERS[optimizer], local, F.mse_loss)
    states_equal(distributed, single, gradients=True)
    states_equal(distributed, ddp, gradients=True)
    before = model.state_dict()
    moved = [not torch.equal(whole_of(each), before[name]) for name, each in distributed.state_dict().items()]
    assert all(moved), "nothing was trained"


class Parallel(nn.Module):
    """The sum of two layers of the same input."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(10, 10), nn.Linear(10, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) + self.two(x)


class BakedInShape(nn.Module):
    """Tensors that are expanded to the shape of another, in a list and in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(5, 10)), nn.Parameter(torch.randn(5))

    def forward(self, x: torch.Tensor, ys: list[torch.Tensor], *, more: dict[str, torch.Tensor]) -> torch.Tensor:
        x = x.permute(0, 2, 1)
        total = x + ys[0].expand(x.shape) + more["value"].expand(x.shape)
        return F.linear(total, self.w, self.b)


class CatOfWeight(nn.Module):
    """A parameter twice; the input is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((self.w, self.w), 0)


def one_step(make: Callable[[], nn.Module], *shape: int) -> None:
    """Forward and backward of a module with one batch: outputs and gradients."""
    model = make().double()
    x = torch.randn(*shape).double()
    weight = torch.randn_like(model(x)).double()
    distributed = sl.distribute(model, sl.Mesh(dp=dist.get_world_size()), example=x, batch="dp")
    out = distributed(mine(x))
    close(out, mine(model(x)).detach(), "out")
    (out * mine(weight)).mean().backward()
    (model(x) * weight).mean().backward()
    states_equal(distributed, model, gradients=True)


def layer_norm() -> None:
    one_step(lambda: nn.LayerNorm(5), 4, 5)


def sequential() -> None:
    one_step(lambda: nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10)), 2, 10)


def parallel() -> None:
    one_step(Parallel, 2, 10)


def cat_of_weight() -> None:
    """What comes out whole is used in the same way everywhere; its gradient is exact."""
    model = CatOfWeight().double()
    x = torch.randn(2, 4).double()
    distributed = sl.distribute(model, sl.Mesh(dp=dist.get_world_size()), example=x)
    out = distributed(x)
    close(out, model(x).detach(), "out")
    weight = torch.arange(16.0).reshape(4, 4).double()
    (out * weight).mean().backward()
    (model(x) * weight).mean().backward()
    states_equal(distributed, model, gradients=True)


def baked_in_shape() -> None:
    """Keyword arguments, lists and dicts; every rank has data of its own."""
    size, rank = dist.get_world_size(), dist.get_rank()
    model = BakedInShape().double()
    x, y, z = (torch.randn(2 * size, *shape).double() for shape in ((10, 80), (80, 10), (80, 10)))
    distributed = sl.distribute(model, sl.Mesh(dp=size), example=(x, [y]), kwargs={"more": {"value": z}}, batch="dp")
    out = distributed(mine(x), [mine(y)], more={"value": mine(z)})
    expected = model(x, [y], more={"value": z})
    close(out, expected.chunk(size)[rank].detach(), "out")
    weight = torch.randn_like(expected)
    (out * mine(weight)).mean().backward()
    (expected * weight).mean().backward()
    states_equal(distributed, model, gradients=True)


def hybrid() -> None:
    """A module under DDP, followed by a distributed one: the gradient flows through both."""
    size = dist.get_world_size()
    first = nn.Sequential(nn.Linear(4, 8), nn.Softmax(-1)).double()
    second = nn.Sequential(nn.Linear(8, 2), nn.Softmax(-1)).double()
    x, y = torch.randn(12, 4).double(), torch.randn(12, 2).double()
    distributed = sl.distribute(
        second, sl.Mesh(dp=size), example=torch.zeros(12, 8, dtype=torch.float64, requires_grad=True), batch="dp"
    )
    wrapped = nn.parallel.DistributedDataParallel(copy.deepcopy(first))
    F.mse_loss(distributed(wrapped(mine(x))), mine(y)).backward()
    F.mse_loss(second(first(x)), y).backward()
    states_equal(distributed, second, gradients=True)
    for found, expected in zip(wrapped.module.parameters(), first.parameters(), strict=True):
        close(found.grad, expected.grad, "gradient under DDP")


class WithBuffer(nn.Module):
    """A buffer that requires a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(10, 10).double()
        self.register_buffer("table", torch.randn(10, 10, dtype=torch.float64, requires_grad=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) + x @ self.table


def buffer_with_gradient() -> None:
    """The optimizer sees two parameters; the buffer stays, and has its gradient."""
    model = WithBuffer()
    x = torch.randn(4, 10).double()
    distributed = sl.distribute(model, sl.Mesh(dp=dist.get_world_size()), example=x, batch="dp")
    assert [name for name, _ in distributed.named_parameters()] == ["fc.weight", "fc.bias"]
    stepper = torch.optim.SGD(distributed.parameters(), lr=0.1)
    distributed(mine(x)).square().mean().backward()
    stepper.step()
    model(x).square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    states_equal(distributed, model, gradients=True)
    close(whole_of(distributed.table.grad), model.table.grad, "grad(table)")


def batch_norm() -> None:
    """Statistics of the whole batch, running ones written back; train, eval and train again."""
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU()).double()
    xs = [torch.randn(8, 6).double() for _ in range(3)]
    distributed = sl.distribute(model, sl.Mesh(dp=dist.get_world_size()), example=xs[0], batch="dp")
    for x in xs:
        weight = torch.randn(8, 4).double()
        for module, data, weights in ((distributed, mine(x), mine(weight)), (model, x, weight)):
            module.zero_grad()
            (module(data) * weights).mean().backward()
        states_equal(distributed, model, gradients=True)
        with torch.no_grad():
            close(distributed.eval()(mine(x)), mine(model.eval()(x)), "eval")
        close(distributed(mine(x)).detach(), mine(model(x)).detach(), "eval with gradients")
        distributed.train()
        model.train()
    assert int(model[1].num_batches_tracked) == 3
    assert int(distributed.get_submodule("1").num_batches_tracked.to_local()) == 3


def averaged() -> None:
    """Copies have tensors of their own and run the same programs; an average of weights is that of the plain module."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)).double()
    x = torch.randn(8, 6).double()
    distributed = sl.distribute(model, sl.Mesh(dp=dist.get_world_size()), example=x, batch="dp")
    copied = copy.deepcopy(distributed)
    close(copied.eval()(mine(x)).detach(), distributed.eval()(mine(x)).detach(), "a copy")
    distributed.train()
    averages = []
    for module, data in ((distributed, mine(x)), (model, x)):
        average = torch.optim.swa_utils.AveragedModel(module)
        stepper = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            stepper.zero_grad()
            module(data).square().mean().backward()
            stepper.step()
            average.update_parameters(module)
        averages.append(average.module)
    states_equal(distributed, model)
    for name, parameter in averages[1].named_parameters():
        close(whole_of(averages[0].get_parameter(name)), parameter, f"average of {name}")
    assert not torch.equal(whole_of(copied.get_parameter("0.weight")), model[0].weight)
    with pytest.raises(sl.SpmdLabError, match=r"save module\.state_dict\(\)"):
        pickle.dumps(distributed)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(6, 16), nn.Linear(16, 4), nn.Dropout(0.4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.drop(F.gelu(self.up(self.drop(x)))))


def _three_steps(module: nn.Module, data: torch.Tensor) -> list[torch.Tensor]:
    """What a module returns in three steps of training."""
    stepper = torch.optim.SGD(module.parameters(), lr=0.1)
    outs = []
    for _ in range(3):
        stepper.zero_grad()
        out = module(data)
        out.square().mean().backward()
        stepper.step()
        outs.append(out.detach())
    return outs


def dropout() -> None:
    """Masks are those of a single device from the first rank's seed on; the process's own random state stays apart."""
    model = Dropping().double()
    x = torch.randn(6, 6).double()
    torch.manual_seed(11 + dist.get_rank())
    distributed = sl.distribute(model, sl.Mesh(dp=dist.get_world_size()), example=x, batch="dp")
    before = torch.get_rng_state()
    outs = _three_steps(distributed, mine(x))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(11)
    wanted = _three_steps(model, x)
    states_equal(distributed, model)
    for found, expected in zip(outs, wanted, strict=True):
        close(found, mine(expected), "out")
    distributed.manual_seed(5)
    again = distributed(mine(x)).detach()
    torch.manual_seed(5)
    close(again, mine(model(x)).detach(), "after a new seed")


class Tied(nn.Module):
    """A tied embedding, a buffer, a parameter of the root, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.drop, self.norm = nn.Embedding(10, 6), nn.Dropout(0.3), nn.BatchNorm1d(6)
        self.body, self.head = nn.Sequential(nn.Linear(6, 6), nn.GELU()), nn.Linear(6, 10, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.empty(6))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.norm(self.drop(self.embed(tokens)))) * self.scale)


def _first_values(module: nn.Module) -> None:
    """What a submodule holds itself, at random."""
    for parameter in module.parameters(recurse=False):
        nn.init.normal_(parameter)
    for name, buffer in module.named_buffers(recurse=False):
        buffer.fill_("var" in name)


def from_meta() -> None:
    """A module from ``meta`` gets the first values of a single device, whatever divides it, and trains like one."""
    tokens = torch.arange(8) % 10
    alone = Tied()
    torch.manual_seed(7)
    alone.apply(_first_values)
    with torch.device("meta"):
        empty = Tied()
    size, divided = dist.get_world_size(), {"embed.weight": [Shard(0)], "body.**": [Shard(0)]}
    make = partial(sl.distribute, empty, sl.Mesh(dp=size), example=tokens, batch="dp", params=divided)
    model = make()
    model.manual_seed(7)
    model.initialise(_first_values)
    states_equal(model, alone)
    assert model.head.weight is model.embed.weight
    assert all(parameter.is_meta for parameter in empty.parameters())
    outs = _three_steps(model, mine(tokens))
    for found, expected in zip(outs, _three_steps(alone, tokens), strict=True):
        close(found, mine(expected), "out")
    states_equal(model, alone)
    loaded = make().to_empty(device="cpu")
    loaded.load_state_dict(model.state_dict())
    states_equal(loaded, alone)
    assert loaded.head.weight is loaded.embed.weight


class Sideways(nn.Module):
    """Reads a layer through a method that a plain attribute holds, beside the tree of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 4)
        self.first = self.widen

    def widen(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x).relu()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.first(x))


def let_go() -> None:
    """The user's tensors live as long as the user's module does, and no longer, unless they are needed."""
    x = torch.randn(8, 6).double()
    for make, needed in ((lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)), False), (Sideways, True)):
        module = make().double()
        alone, seen = copy.deepcopy(module), weakref.ref(next(module.parameters()))
        distributed = sl.distribute(module, sl.Mesh(dp=dist.get_world_size()), example=x, batch="dp")
        del module
        gc.collect()
        assert (seen() is not None) == needed
        if needed:
            alone.first = alone.widen
        for rows in (8, 4):
            close(distributed(mine(x[:rows])).detach(), mine(alone(x[:rows])).detach(), "out")


def checkpointed(axis: str) -> None:
    """What is computed again in the backward has the masks and the messages of the forward."""

    class Checkpointed(Dropping):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(super().forward, x, use_reentrant=False)

    model = Checkpointed().double()
    x = torch.randn(6, 6).double()
    divided = sl.colwise("up", axis="tp") | sl.rowwise("down", axis="tp")
    placing = {"dp": {"batch": "dp", "stored": {"*.weight": [Shard(0)]}}, "tp": {"params": divided}}[axis]
    part = mine if axis == "dp" else torch.Tensor.clone
    torch.manual_seed(11)
    distributed = sl.distribute(model, sl.Mesh(**{axis: dist.get_world_size()}), example=x, **placing)
    outs = _three_steps(distributed, part(x))
    torch.manual_seed(11)
    for found, expected in zip(outs, _three_steps(model, x), strict=True):
        close(found, part(expected), "out")
    states_equal(distributed, model)


def compiled(axis: str) -> None:
    """What the compiler makes of both halves trains as the module does, with its random numbers and collectives."""
    model = Dropping().double()
    x = torch.randn(6, 6).double()
    divided = sl.colwise("up", axis="tp") | sl.rowwise("down", axis="tp")
    placing = {"dp": {"batch": "dp"}, "tp": {"params": divided}}[axis]
    part = {"dp": mine, "tp": torch.clone}[axis]
    before = _compiled_graphs()
    distributed = sl.distribute(model, sl.Mesh(**{axis: dist.get_world_size()}), example=x, compiled=True, **placing)
    distributed.manual_seed(11)
    outs = _three_steps(distributed, part(x))
    torch.manual_seed(11)
    wanted = _three_steps(model, x)
    states_equal(distributed, model, gradients=True)
    for found, expected in zip(outs, wanted, strict=True):
        close(found, part(expected), "out")
    assert _compiled_graphs() - before == 2, "both halves are compiled, once"


def _compiled_graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]
