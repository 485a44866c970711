"""Parameters divided at rest, on real ranks: training equals that of a single device, of DDP and of FSDP."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import spmd_lab as sl
from tests.models.zoo import ZOO
from tests.run.curve_cases import its_loss, losses
from tests.run.on_rank import close, mine, states_equal, trained, trained_by_ddp, whole_of, world_mesh

STEPS = 5
ADAM = torch.optim.Adam


class Mlp(nn.Module):
    """With a norm, a scale of no dims, and sizes that four ranks do not divide."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(10, 18), nn.LayerNorm(18), nn.Linear(18, 6)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(torch.sigmoid(self.up(x)))) * self.scale


def adam(parameters: Any) -> torch.optim.Optimizer:
    return ADAM(parameters, lr=0.01, foreach=False)


def trains(regather: bool) -> None:
    """As on one device and under DDP; what a rank holds of parameters, gradients and moments is its part."""
    size = dist.get_world_size()
    model = Mlp().double()
    batches = [(torch.randn(16, 10).double(), torch.randn(16, 6).double()) for _ in range(STEPS)]
    local = [(mine(x), mine(y)) for x, y in batches]
    distributed = sl.distribute(
        model, sl.Mesh(dp=size), example=batches[0][0], batch="dp", stored=sl.fsdp("dp"), regather=regather
    )
    stepper = adam(distributed.parameters())
    single = trained(copy.deepcopy(model), adam, batches, F.mse_loss)
    ddp = trained_by_ddp(model, adam, local, F.mse_loss)
    trained(distributed, lambda _: stepper, local, F.mse_loss)
    states_equal(distributed, single, gradients=True)
    states_equal(distributed, ddp, gradients=True)
    for name, parameter in distributed.named_parameters():
        part = parameter.to_local().shape
        assert part.numel() <= -(-parameter.shape.numel() // size) + 18
        assert len({tensor.to_local().shape for tensor in held_by(stepper, parameter)} | {part}) == 1, name


def held_by(stepper: torch.optim.Optimizer, parameter: torch.Tensor) -> list[DTensor]:
    """A parameter, its gradient, and its moments."""
    state = [each for name, each in stepper.state[parameter].items() if name != "step"]
    assert isinstance(parameter, DTensor)
    assert isinstance(parameter.grad, DTensor)
    assert len(state) == 2
    return [parameter, parameter.grad, *state]


def trains_as_under_fsdp() -> None:
    """Parameters, gradients and shards equal those of torch's own."""
    torch.manual_seed(3)
    specimen = ZOO["gpt2"]()
    size = dist.get_world_size()
    theirs = copy.deepcopy(specimen.model)
    mesh = world_mesh(dp=size)
    for block in theirs.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(theirs, mesh=mesh)
    ours = sl.distribute(
        specimen.model, sl.Mesh(dp=size), kwargs=specimen.kwargs, batch="dp", loss=its_loss, stored=sl.fsdp("dp")
    )
    tokens = {name: mine(tensor) for name, tensor in specimen.kwargs.items()}
    curves = [losses(model, tokens, STEPS) for model in (ours, theirs)]
    found, of_mine = torch.tensor(curves)
    dist.all_reduce(of_mine)
    torch.testing.assert_close(found, of_mine / size, rtol=1e-5, atol=0)
    others = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        assert isinstance(parameter, DTensor)
        assert parameter.placements == others[name].placements, name
        torch.testing.assert_close(parameter.to_local(), others[name].to_local(), rtol=1e-5, atol=1e-5, msg=name)


def trains_below_tensor_parallelism() -> None:
    """Matrices divided over ``tp`` in use, and over ``dp`` besides at rest, along the same dim or the other one."""
    torch.manual_seed(3)
    specimen = ZOO["gpt2"]()
    alone = copy.deepcopy(specimen.model).double()
    specimen.model.double()
    how = {"kwargs": specimen.kwargs, "batch": "dp", "loss": its_loss, "global_inputs": True}
    model = sl.distribute(specimen.model, sl.Mesh(dp=2, tp=2), params=specimen.rules, stored=sl.fsdp("dp"), **how)
    at_rest = {name: str(model.expansion.layout(f"transformer.h.0.mlp.{name}.weight")) for name in ("c_fc", "c_proj")}
    assert at_rest == {"c_fc": "f64[32/dp, 128/tp]", "c_proj": "f64[128/tp/dp, 32]"}
    curves = [
        losses(each, specimen.kwargs, STEPS, torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9))
        for each in (model, alone)
    ]
    torch.testing.assert_close(*map(torch.tensor, curves), rtol=1e-6, atol=0)  # the model computes its loss in float32
    norms = [torch.nn.utils.clip_grad_norm_(each.parameters(), 0.5) for each in (model, alone)]
    whole = norms[0].full_tensor() if isinstance(norms[0], DTensor) else norms[0]
    torch.testing.assert_close(whole, norms[1], rtol=1e-6, atol=0)
    for name, parameter in alone.named_parameters():
        held = model.get_parameter(name)
        torch.testing.assert_close(whole_of(held), parameter, rtol=1e-6, atol=1e-7, msg=name)
        torch.testing.assert_close(whole_of(held.grad), parameter.grad, rtol=1e-5, atol=1e-7, msg=f"grad({name})")


def called_in_other_ways() -> None:
    """Calls of other kinds find every parameter at rest as the example did, and leave it there."""
    model = Mlp().double()
    x, more = torch.randn(8, 10).double(), torch.randn(12, 10).double()
    how = {"example": x, "batch": "dp", "stored": {"up.weight": "o i/dp"} | sl.fsdp("dp")}
    distributed = sl.distribute(model, sl.Mesh(dp=dist.get_world_size()), **how)
    before = {name: each.placements for name, each in distributed.named_parameters()}
    with torch.no_grad():
        close(distributed.eval()(mine(x)), mine(model(x)), "without gradients")
    for data in (x, more, x):
        for module, rows in ((distributed, mine(data)), (model, data)):
            module.train()
            module(rows).square().mean().backward()
    states_equal(distributed, model, gradients=True)  # of three calls, added up
    for module in (distributed, model):
        module.zero_grad()
    with distributed.no_sync():
        for data in (x, more):
            distributed(mine(data)).square().mean().backward()
            model(data).square().mean().backward()
        assert distributed.up.weight.grad.placements == (Partial(),)
    states_equal(distributed, model, gradients=True)  # pending until now, then scattered to where they rest
    distributed.up.requires_grad_(False)
    model.up.requires_grad_(False)
    for module, rows in ((distributed, mine(x)), (model, x)):
        module.zero_grad()
        module(rows).square().mean().backward()
    close(whole_of(distributed.down.weight.grad), model.down.weight.grad, "a frozen layer")
    assert distributed.up.weight.grad is None
    assert before == {name: each.placements for name, each in distributed.named_parameters()}


def buffers() -> None:
    """Running statistics are written back where they rest."""
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)).double()
    stored = {"1.running_*": "c/dp"} | sl.fsdp("dp")
    x = torch.randn(8, 6).double()
    distributed = sl.distribute(model, sl.Mesh(dp=dist.get_world_size()), example=x, batch="dp", stored=stored)
    for _ in range(3):
        for module, rows in ((distributed, mine(x)), (model, x)):
            module.zero_grad()
            module(rows).square().mean().backward()
    states_equal(distributed, model, gradients=True)
    assert distributed.get_buffer("1.running_mean").to_local().numel() == 4 // dist.get_world_size()


def trains_on_copies() -> None:
    """Hybrid sharding: divided within groups, copied across them, the batch over both; first values made on the way."""
    alone = Mlp().double()
    with torch.device("meta"):
        plain = Mlp().double()
    example = torch.empty(16, 10, device="meta", dtype=torch.float64)
    how = {"inputs": {"x": "b/copies/shards d"}, "stored": sl.fsdp("shards")}
    distributed = sl.distribute(plain, sl.Mesh(copies=2, shards=2), example=example, **how)
    distributed.manual_seed(0)
    distributed.initialise(reset)
    torch.manual_seed(0)
    alone.apply(reset)
    batches = [(torch.randn(16, 10).double(), torch.randn(16, 6).double()) for _ in range(STEPS)]
    trained(alone, adam, batches, F.mse_loss)
    trained(distributed, adam, [(mine(x), mine(y)) for x, y in batches], F.mse_loss)
    states_equal(distributed, alone, gradients=True)
    assert distributed.up.weight.placements == (Replicate(), Shard(0))


def reset(module: nn.Module) -> None:
    """First values of a module's own."""
    if isinstance(module, Mlp):
        nn.init.constant_(module.scale, 1.5)
    elif hasattr(module, "reset_parameters"):
        module.reset_parameters()
