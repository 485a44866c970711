"""The parameters and buffers of a module, held by the ranks as DTensors."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from spmd_lab.errors import ArgumentError
from spmd_lab.run.agreement import broadcast
from spmd_lab.streams import Stream, random_state
from spmd_lab.torch_internals.fakes import is_fake
from spmd_lab.torch_internals.modules import get_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.layout import Layout
    from spmd_lab.run.plan import Plan

__all__ = ["common_stream", "cut", "distributed_state", "following", "placed", "reduce_gradients", "refuse_foreign"]


def refuse_foreign(module: nn.Module) -> None:
    """Refuse parameters and buffers that are fake, or distributed already; on ``meta`` they get values later.

    Raises
    ------
    ArgumentError
        It names the first one.
    """
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if isinstance(tensor, DTensor):
            raise ArgumentError(
                f"{name!r} is a DTensor already",
                argument="module",
                hint="distribute the module as it is on a single device",
            )
        if is_fake(tensor):
            raise ArgumentError(
                f"{name!r} is fake: it has no data, and can get none",
                argument="module",
                hint='make the module on torch.device("meta"), and initialise what distribute returns',
            )


def distributed_state(plan: Plan, device_mesh: DeviceMesh, data: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """What each parameter and buffer becomes, by the ``id`` of the traced one: shards of the first rank's values.

    Parameters
    ----------
    plan : Plan
        Has the layouts.
    device_mesh : DeviceMesh
        The ranks.
    data : mapping of int to torch.Tensor
        The tensors behind traced ones that are fake. What is on ``meta`` stays there.
    """
    state: dict[int, torch.Tensor] = {}
    traced = plan.expansion.traced
    for (found, layout), value in zip(plan.inputs, traced.values, strict=False):
        if found.role not in ("parameter", "buffer"):
            continue
        whole = data.get(id(value), value)
        local = cut(whole if whole.is_meta else broadcast(whole, device_mesh), layout, plan.rank)
        held: torch.Tensor = DTensor.from_local(
            local, device_mesh, layout.placements, run_check=False, shape=whole.shape, stride=whole.stride()
        )
        if isinstance(whole, nn.Parameter):
            held = nn.Parameter(held, requires_grad=whole.requires_grad)
        state[id(value)] = held.requires_grad_(whole.requires_grad)
    return state


def cut(whole: torch.Tensor, layout: Layout, rank: int) -> torch.Tensor:
    """A rank's shard, in memory of its own."""
    return whole[layout.slices(rank)].clone(memory_format=torch.preserve_format)


def placed(tensor: torch.Tensor, placements: tuple[Placement, ...]) -> DTensor:
    """A DTensor in these placements."""
    assert isinstance(tensor, DTensor)
    return tensor if tensor.placements == placements else tensor.redistribute(placements=placements)


def reduce_gradients(module: nn.Module) -> None:
    """Bring every gradient to where its parameter lies; every rank does it for the same parameters."""
    for parameter in module.parameters():
        if parameter.grad is not None:
            assert isinstance(parameter, DTensor)
            parameter.grad = placed(parameter.grad, parameter.placements)


@contextmanager
def following(module: nn.Module, now: nn.Module, wholes: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Let a module follow another of the same tree: its training flags, and which of its tensors require gradients.

    Afterwards it is as it was.

    Parameters
    ----------
    module, now : nn.Module
        The user's module, and the one that holds its state.
    wholes : mapping of str to torch.Tensor
        The tensors of the user's, by the names that ``now`` has them under.
    """
    flags = [(each, each.training) for each in module.modules()]
    gradients = [(whole, whole.requires_grad) for whole in wholes.values()]
    try:
        for (each, _), other in zip(flags, now.modules(), strict=False):
            each.training = other.training
        for name, whole in wholes.items():
            held = get_tensor(now, name)
            if held.dtype != whole.dtype:
                raise ArgumentError(
                    f"{name!r} is {held.dtype} now, and was {whole.dtype} when the module was distributed",
                    argument=name,
                    hint="cast the module before it is distributed",
                )
            whole.requires_grad_(held.requires_grad)
        yield
    finally:
        for each, training in flags:
            each.training = training
        for whole, requires_grad in gradients:
            whole.requires_grad_(requires_grad)


def common_stream(device_mesh: DeviceMesh) -> Stream:
    """The first rank's random numbers, for all ranks: they draw the same, each on its own device."""
    cpu, *gpus = random_state()
    shared = [broadcast(cpu, device_mesh).cpu()]
    if gpus:
        mine = broadcast(gpus[torch.cuda.current_device()], device_mesh).cpu()
        shared += [mine] * len(gpus)
    return Stream(shared)
