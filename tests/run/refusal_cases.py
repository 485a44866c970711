"""What `distribute` and `for_rank` refuse on real ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Partial, Shard

import spmd_lab as sl
from tests.run.call_cases import doubles, everywhere, linear, mine, refusal
from tests.run.on_rank import world_mesh

X = torch.zeros(8, 6, dtype=torch.float64)


class Writing(nn.Module):
    """Changes its input in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2) + 1


class Branching(nn.Module):
    """Its program depends on data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class Bare(nn.Module):
    """Holds a tensor, and does not say how to reset it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def distribute(module: nn.Module | None = None, **options: Any) -> Any:
    chosen = {"example": X, "batch": "dp", **options}
    return sl.distribute(module or linear(), chosen.pop("mesh", everywhere()), **chosen)


def refusals() -> dict[str, str]:
    """The texts of the errors of `distribute`, by what is wrong."""
    rank = dist.get_rank()
    distributed = distribute()
    wrapped = nn.parallel.DistributedDataParallel(linear())
    held = nn.Linear(6, 4)
    held.weight = distributed.weight
    whole = distribute(global_inputs=True)
    return {
        "size": refusal(lambda: distribute(mesh=sl.Mesh(dp=2, tp=3))),
        "no mesh": refusal(lambda: distribute(mesh="dp=2")),
        "twice": refusal(lambda: distribute(distributed)),
        "inside": refusal(lambda: distribute(nn.Sequential(distributed))),
        "ddp": refusal(lambda: distribute(nn.Sequential(wrapped))),
        "dtensor": refusal(lambda: distribute(held)),
        "function": refusal(lambda: distribute(torch.relu)),
        "meta": refusal(lambda: distribute(nn.Linear(6, 4, device="meta"))(mine(X))),
        "no reset": refusal(lambda: distribute(Bare(), params={}).initialise()),
        "axis": refusal(lambda: distribute(batch="dq")),
        "gradient": refusal(lambda: distribute(outputs={"grad(weight)": "o/dp i"})),
        "pending state": refusal(lambda: distribute(params={"weight": [Partial()]})),
        "pending whole": refusal(lambda: distribute(batch=None, inputs=[[Partial()]], global_inputs=True)),
        "written": refusal(lambda: distribute(Writing())),
        "branch": refusal(lambda: distribute(Branching())),
        "arguments": refusal(lambda: distribute(example=(X, X, X))),
        "pending": refusal(lambda: distribute(pending="later")),
        "grad": refusal(lambda: distribute(grad="average")),
        "other widths": refusal(lambda: distribute(linear(6, 4 + rank))),
        "other placements": refusal(lambda: distribute(params={"weight": [Shard(rank)]})),
        "cast": refusal(lambda: distribute().float()(mine(X))),
        "cut gradient": refusal(lambda: whole(X.clone().requires_grad_())),
    }


def binding_refusals() -> dict[str, str]:
    """The texts of the errors of `for_rank` with a mesh that does not fit."""
    size, rank = dist.get_world_size(), dist.get_rank()
    program = sl.spmd_expand(linear(), X, mesh=everywhere(), batch="dp").program
    other = world_mesh(tp=size)
    more = world_mesh(dp=1, tp=size)
    right = world_mesh(dp=size)
    program.for_rank(rank, right)
    return {
        "axes": refusal(lambda: program.for_rank(rank, other)),
        "sizes": refusal(lambda: program.for_rank(rank, more)),
        "rank": refusal(lambda: program.for_rank((rank + 1) % size, right)),
        "no such rank": refusal(lambda: program.for_rank(size, right)),
    }


def unnamed_mesh() -> None:
    """A device mesh whose axes have no names is a mesh of axis0, axis1, …."""
    size, rank = dist.get_world_size(), dist.get_rank()
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    model, x = linear(), doubles(8, 6)
    program = sl.spmd_expand(model, x, mesh=sl.Mesh.from_device_mesh(mesh), batch="axis0", backward=False).program
    out, *_ = program.for_rank(rank, mesh)(model.weight, model.bias, mine(x))
    torch.testing.assert_close(out, mine(model(x)))
    distributed = sl.distribute(model, mesh, example=x, batch="axis0")
    torch.testing.assert_close(distributed(mine(x)), mine(model(x)))
