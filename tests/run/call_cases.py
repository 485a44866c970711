"""Calls of every kind on real ranks: new shapes, flags and modes, whole tensors and DTensors, losses inside."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import spmd_lab as sl
from tests.run.on_rank import close, mine, states_equal, whole_of, world_mesh

if TYPE_CHECKING:
    from collections.abc import Callable


def everywhere() -> sl.Mesh:
    """All ranks on one axis."""
    return sl.Mesh(dp=dist.get_world_size())


def linear(width: int = 6, out: int = 4) -> nn.Module:
    return nn.Linear(width, out).double()


def doubles(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def plans_of(model: Any) -> int:
    """How many kinds of call a module knows."""
    return len(model._plans._plans)


def refusal(call: Callable[[], Any]) -> str:
    """The text of the error that a call raises on this rank; the group must work afterwards."""
    with pytest.raises(sl.SpmdLabError) as refused:
        call()
    check = torch.ones(1)
    dist.all_reduce(check)
    assert check.item() == dist.get_world_size()
    return str(refused.value)


# --- shapes -------------------------------------------------------------------------------------


def new_shapes() -> None:
    """A batch of another size, uneven ones too: all ranks trace anew, once for each size."""
    model = linear()
    distributed = sl.distribute(model, everywhere(), example=doubles(8, 6), batch="dp", grad="sum")
    for rows, plans in ((8, 1), (5, 2), (12, 3), (5, 3), (8, 3), (1, 4)):
        x, weight = doubles(rows, 6), doubles(rows, 4)
        layout = sl.Layout.parse("b/dp ...", everywhere(), x.shape, x.dtype)
        part = layout.slices(dist.get_rank())
        for module in (model, distributed):
            module.zero_grad()
        out = distributed(x[part])
        (out * weight[part]).sum().backward()
        (model(x) * weight).sum().backward()
        close(out.detach(), model(x).detach()[part], f"out of {rows} rows")
        states_equal(distributed, model, gradients=True)
        assert plans_of(distributed) == plans, (rows, plans_of(distributed))


def same_shape_here_another_there() -> None:
    """The ranks decide together: rank 0 has as many rows as before, the last rank has fewer."""
    model = linear()
    distributed = sl.distribute(model, everywhere(), example=doubles(8, 6), batch="dp", grad="sum")
    rows = 8 - dist.get_world_size() // 2
    x = doubles(rows, 6)
    part = sl.Layout.parse("b/dp ...", everywhere(), x.shape, x.dtype).slices(dist.get_rank())
    assert x[part].shape[0] == (8 // dist.get_world_size() if dist.get_rank() == 0 else x[part].shape[0])
    distributed(x[part]).square().sum().backward()
    model(x).square().sum().backward()
    states_equal(distributed, model, gradients=True)


def wrong_shapes() -> list[str]:
    """Shards that belong to no whole, calls that differ: every rank raises, none waits."""
    distributed = sl.distribute(linear(), everywhere(), example=doubles(8, 6), batch="dp")
    rank = dist.get_rank()
    texts = [
        refusal(lambda: distributed(doubles(3 + 2 * rank, 6))),
        refusal(lambda: distributed(doubles(4, 6 + rank))),
        refusal(lambda: distributed(doubles(4, 6, 2))),
        refusal(lambda: distributed(doubles(4, 6).float() if rank else doubles(4, 6))),
        refusal(lambda: distributed(doubles(4, 6), 3) if rank else distributed(doubles(4, 6))),
    ]
    distributed(doubles(4, 6)).sum().backward()
    return texts


# --- what calls are made with -------------------------------------------------------------------


class Flagged(nn.Module):
    """Its program depends on arguments that are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6).double()

    def forward(self, x: torch.Tensor, power: int = 1, *, extra: str | None = None) -> dict[str, Any]:
        out = self.fc(x) ** power
        return {"out": out, "extra": extra, "pair": (out.sum(-1), power), "nothing": None}


def constants() -> None:
    """Other arguments than tensors are part of the program; the structure of what is returned stays."""
    model, x = Flagged(), doubles(8, 6)
    distributed = sl.distribute(model, everywhere(), example=x, kwargs={"power": 2}, batch="dp")
    for power, extra, plans in ((2, None, 2), (3, None, 3), (True, None, 4), (2, "text", 5), (3, None, 5)):
        expected, found = model(x, power, extra=extra), distributed(mine(x), power, extra=extra)
        assert list(found) == list(expected)
        assert (found["extra"], found["nothing"], found["pair"][1]) == (extra, None, power)
        close(found["out"].detach(), mine(expected["out"]).detach(), "out")
        close(found["pair"][0].detach(), mine(expected["pair"][0]).detach(), "sum")
        assert plans_of(distributed) == plans


def different_constants() -> str:
    """Ranks that pass different flags would run different programs."""
    distributed = sl.distribute(Flagged(), everywhere(), example=doubles(8, 6), batch="dp")
    return refusal(lambda: distributed(mine(doubles(8, 6)), 2 + dist.get_rank()))


def whole_inputs() -> None:
    """Whole tensors, the same on every rank, are cut; what comes out is this rank's part."""
    model, x = linear(), doubles(7, 6)
    distributed = sl.distribute(model, everywhere(), example=x, batch="dp", global_inputs=True, grad="sum")
    for rows in (7, 4):
        model.zero_grad()
        distributed.zero_grad()
        part = sl.Layout.parse("b/dp ...", everywhere(), (rows, 6), x.dtype).slices(dist.get_rank())
        out = distributed(x[:rows])
        close(out.detach(), model(x[:rows])[part].detach(), "out")
        out.square().sum().backward()
        model(x[:rows]).square().sum().backward()
        states_equal(distributed, model, gradients=True)


def distributed_inputs() -> None:
    """DTensors are taken as they are, or redistributed; their gradients lie as they do."""
    model, x, mesh = linear(), doubles(8, 6), world_mesh(dp=dist.get_world_size())
    distributed = sl.distribute(model, mesh, example=x, batch="dp")
    weight = doubles(8, 4)
    leaf = x.clone().requires_grad_()
    (model(leaf) * weight).mean().backward()
    for placements in ([Shard(0)], [Replicate()], [Shard(1)]):
        distributed.zero_grad()
        given = torch.distributed.tensor.distribute_tensor(x, mesh, placements).requires_grad_()
        (distributed(given) * mine(weight)).mean().backward()
        states_equal(distributed, model, gradients=True)
        assert isinstance(given.grad, DTensor)
        close(given.grad.full_tensor(), leaf.grad, f"gradient of an input at {placements}")


def other_strides() -> None:
    """A transposed or sliced tensor is the same tensor."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4)).double()
    x = doubles(8, 3, 4)
    distributed = sl.distribute(model, everywhere(), example=x, batch="dp")
    views = [mine(x).transpose(1, 2).contiguous().transpose(1, 2), torch.cat([mine(x), mine(x)], -1)[..., :4]]
    for view in views:
        assert not view.is_contiguous()
        close(distributed(view).detach(), model(mine(x)).detach(), "out")
    distributed(mine(x)).sum().backward()  # the gradient that arrives is expanded
    model(x).sum(1).sum().backward()
    for name, parameter in model.named_parameters():
        close(whole_of(dict(distributed.named_parameters())[name].grad), parameter.grad / dist.get_world_size(), name)


def gradient_of_an_input() -> None:
    """An input's gradient is that of the rank's own loss, as under DDP; with a whole loss it is exact."""
    size = dist.get_world_size()
    model, x, weight = linear(), doubles(8, 6), doubles(8, 4)
    distributed = sl.distribute(model, everywhere(), example=x, batch="dp")
    local, whole = mine(x).clone().requires_grad_(), x.clone().requires_grad_()
    (distributed(local) * mine(weight)).mean().backward()
    (model(whole) * weight).mean().backward()
    close(local.grad / size, mine(whole.grad), "gradient of an input")
    inside = sl.distribute(model, everywhere(), example=x, batch="dp", loss=lambda out: out.square().mean())
    local, whole = mine(x).clone().requires_grad_(), x.clone().requires_grad_()
    inside(local)[0].backward()
    model(whole).square().mean().backward()
    close(local.grad, mine(whole.grad), "gradient of an input with a loss inside")


# --- modes --------------------------------------------------------------------------------------


def without_gradients() -> None:
    """no_grad and inference_mode run the forward alone."""
    model, x = linear(), doubles(8, 6)
    distributed = sl.distribute(model, everywhere(), example=x, batch="dp")
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            out = distributed(mine(x))
        assert not out.requires_grad
        close(out, mine(model(x)).detach(), mode.__name__)
    distributed(mine(x)).sum().backward()


def frozen() -> None:
    """What is frozen has no gradient; thawed, it has."""
    model, x = nn.Sequential(linear(6, 6), linear(6, 4)), doubles(8, 6)
    distributed = sl.distribute(model, everywhere(), example=x, batch="dp")
    for is_frozen in (True, False):
        for module in (model, distributed):
            module.zero_grad()
            module.get_submodule("0").requires_grad_(not is_frozen)
        distributed(mine(x)).square().mean().backward()
        model(x).square().mean().backward()
        assert (distributed.get_parameter("0.weight").grad is None) == is_frozen
        states_equal(distributed, model)
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                close(whole_of(distributed.get_parameter(name).grad), parameter.grad, name)
    assert all(each.requires_grad for each in model.parameters())


def autocast() -> None:
    """Under autocast operators run in the lower dtype, as in the plain module."""
    model, x = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4)), torch.randn(8, 6)
    distributed = sl.distribute(model, everywhere(), example=x, batch="dp")
    with torch.autocast("cpu", torch.bfloat16):
        out, expected = distributed(mine(x)), model(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, mine(expected))
    out.float().square().mean().backward()
    expected.float().square().mean().backward()
    for name, parameter in model.named_parameters():
        found = distributed.get_parameter(name).grad
        assert found.dtype == torch.float32
        torch.testing.assert_close(whole_of(found), parameter.grad, rtol=2e-2, atol=2e-2)
    assert distributed(mine(x)).dtype == torch.float32


# --- losses -------------------------------------------------------------------------------------


def loss_inside() -> None:
    """The loss is that of all ranks, exact over uneven rows too; what it closes over is read anew in every call."""
    model = linear()
    targets = doubles(7, 4)
    distributed = sl.distribute(
        model, everywhere(), example=doubles(7, 6), batch="dp", loss=lambda out: F.mse_loss(out, targets)
    )
    distributed.program.verify().raise_if_wrong()
    for rows in (7, 7, 5):
        x, targets = doubles(rows, 6), doubles(rows, 4)
        part = sl.Layout.parse("b/dp ...", everywhere(), x.shape, x.dtype).slices(dist.get_rank())
        for module in (model, distributed):
            module.zero_grad()
        loss, out = distributed(x[part])
        expected = F.mse_loss(model(x), targets)
        close(loss.detach(), expected.detach(), "loss")
        close(out, model(x)[part].detach(), "out")
        assert not out.requires_grad
        (3 * loss).backward()
        (3 * expected).backward()
        states_equal(distributed, model, gradients=True)


class LossInModule(nn.Module):
    """Returns a loss and what it was made of, as models of the transformers library do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = linear()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.fc(x)
        return F.mse_loss(out, y), out


def loss_in_module() -> None:
    """A loss that the module computes is a pending scalar: resolved, and its gradient exact."""
    model, x, y = LossInModule(), doubles(5, 6), doubles(5, 4)
    distributed = sl.distribute(model, everywhere(), example=(x, y), batch="dp")
    part = sl.Layout.parse("b/dp ...", everywhere(), x.shape, x.dtype).slices(dist.get_rank())
    loss, out = distributed(x[part], y[part])
    expected = model(x, y)[0]
    close(loss.detach(), expected.detach(), "loss")
    assert out.requires_grad
    loss.backward()
    expected.backward()
    states_equal(distributed, model, gradients=True)


def summed_gradients() -> None:
    """grad="sum": local losses are summed up."""
    model, x, weight = linear(), doubles(8, 6), doubles(8, 4)
    distributed = sl.distribute(model, everywhere(), example=x, batch="dp", grad="sum")
    (distributed(mine(x)) * mine(weight)).sum().backward()
    (model(x) * weight).sum().backward()
    states_equal(distributed, model, gradients=True)


def gradients_accumulate() -> None:
    """Two backwards add up, one through the same call twice too; a second order is refused."""
    model, x = linear(), doubles(8, 6)
    distributed = sl.distribute(model, everywhere(), example=x, batch="dp")
    for module, data in ((model, x), (distributed, mine(x))):
        loss = module(data).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        module(data).square().mean().backward()
    states_equal(distributed, model, gradients=True)
    out = distributed(mine(x)).square().mean()
    (first,) = torch.autograd.grad(out, [distributed.get_parameter("weight")], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.to_local().sum().backward()


def gradients_wait() -> None:
    """Inside ``no_sync`` gradients are pending and nothing is sent for them; they are reduced once, when it ends."""
    model, batches = nn.Sequential(linear(), nn.ReLU(), linear(4, 2)), [doubles(8, 6) for _ in range(3)]
    distributed = sl.distribute(model, everywhere(), example=batches[0], batch="dp")
    weight = distributed.get_parameter("0.weight")
    with distributed.no_sync():
        for x in batches:
            model(x).square().mean().backward()
            distributed(mine(x)).square().mean().backward()
            assert weight.grad.placements == (Partial(),)
        with pytest.raises(ZeroDivisionError), distributed.no_sync():
            raise ZeroDivisionError
        assert weight.grad.placements == (Partial(),)
    weights = [*model.parameters()]
    sent = [program.collectives.where(phase="backward").total("payload_bytes") for program in distributed.programs]
    assert sent == [sum(each.nbytes for each in weights), 0]
    states_equal(distributed, model, gradients=True)
    model(batches[0]).square().mean().backward()
    distributed(mine(batches[0])).square().mean().backward()
    states_equal(distributed, model, gradients=True)
    assert "2 programs" in repr(distributed)
    divided = sl.distribute(model, everywhere(), example=batches[0], batch="dp", params={"2.*": [Shard(0)]})
    model.zero_grad()
    with divided.no_sync():
        for x in batches:
            model(x).square().mean().backward()
            divided(mine(x)).square().mean().backward()
    states_equal(divided, model, gradients=True)


class SameGradient(nn.Module):
    """Two parameters with one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(doubles(8, 4)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.a + self.b


def gradients_are_apart() -> None:
    """What is done to one gradient in place changes no other, and none of the user's tensors."""
    model, x = SameGradient(), doubles(8, 4)
    distributed = sl.distribute(
        model, everywhere(), example=x, params={"*": [Shard(0)]}, inputs=[[Shard(0)]], grad="sum"
    )
    out = distributed(mine(x))
    sent = torch.ones_like(out)
    out.backward(sent)
    distributed.a.grad.mul_(3)
    close(whole_of(distributed.b.grad), torch.ones(8, 4).double(), "b.grad")
    assert torch.equal(sent, torch.ones_like(sent))
    out = distributed(mine(x))
    out.mul_(2)  # what is returned may be changed in place
    out.sum().backward()
    close(whole_of(distributed.b.grad), torch.full((8, 4), 3.0).double(), "b.grad")


# --- state --------------------------------------------------------------------------------------


class Tied(nn.Module):
    """An embedding whose weight is the head's, a shared layer, buffers that are saved and not, a plain tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 6).double()
        self.body = nn.Linear(6, 6).double()
        self.again = self.body
        self.head = nn.Linear(6, 10, bias=False).double()
        self.head.weight = self.embed.weight
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.full((6,), 2.0, dtype=torch.float64), persistent=False)
        self.shift = torch.arange(6.0, dtype=torch.float64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.count += 1
        hidden = self.again(self.body(self.embed(tokens)) * self.scale + self.shift)
        return self.head(hidden)


def tied_state() -> None:
    """Names, ties, classes, buffers and plain tensors are as in the user's module, which stays as it was."""
    model, tokens = Tied(), torch.randint(10, (8, 3))
    before = copy.deepcopy(model.state_dict())
    model.shift += dist.get_rank()  # the first rank's is taken
    distributed = sl.distribute(model, everywhere(), example=tokens, batch="dp", params={"body.**": [Shard(0)]})
    model.shift -= dist.get_rank()
    assert distributed.embed.weight is distributed.head.weight
    assert distributed.body is distributed.again
    assert isinstance(distributed.body, nn.Linear)
    names = [name for name, _ in model.named_parameters()]
    assert [name for name, _ in distributed.named_parameters()] == names
    assert dict(distributed.named_buffers()).keys() == dict(model.named_buffers()).keys()
    assert list(distributed.state_dict()) == list(before)
    assert distributed.body.weight.placements == (Shard(0),)
    weight = doubles(8, 3, 10)
    for _ in range(2):
        (distributed(mine(tokens)) * mine(weight)).mean().backward()
    assert torch.equal(model.count, before["count"])
    assert not model.training or all(each.grad is None for each in model.parameters())
    for _ in range(2):
        (model(tokens) * weight).mean().backward()
    states_equal(distributed, model, gradients=True)
    saved = {name: each.clone() for name, each in distributed.state_dict().items()}
    with torch.no_grad():
        distributed.body.weight.zero_()
    distributed.load_state_dict(saved)
    norm = torch.nn.utils.clip_grad_norm_(distributed.parameters(), 0.1).full_tensor()
    close(norm, torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1), "norm")
    states_equal(distributed, model, gradients=True)


def first_rank_decides() -> None:
    """Parameters and buffers are those of the first rank; the others' modules stay as they are."""
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    model[1].running_mean.normal_()
    own = copy.deepcopy(model.state_dict())
    torch.manual_seed(0)
    expected = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    expected[1].running_mean.normal_()
    distributed = sl.distribute(model, everywhere(), example=torch.zeros(8, 6), batch="dp", params={"0.*": [Shard(0)]})
    states_equal(distributed, expected)
    assert all(torch.equal(own[name], each) for name, each in model.state_dict().items())
