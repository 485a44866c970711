"""What cases that run on real ranks share: shards of data, and tensors put together from the shards of all ranks."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from spmd_lab import Layout, Mesh

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


def mine(whole: torch.Tensor) -> torch.Tensor:
    """This rank's rows of a batch."""
    return whole.chunk(dist.get_world_size())[dist.get_rank()]


def assembled(local: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The whole tensor whose shards the ranks hold; ranks that hold the same elements must hold the same numbers."""
    pieces: list[Any] = [None] * layout.mesh.size
    dist.all_gather_object(pieces, local.detach())
    whole = torch.zeros(layout.global_shape, dtype=layout.dtype)
    for rank, piece in enumerate(pieces):
        assert tuple(piece.shape) == layout.local_shape(rank)
        whole[layout.slices(rank)] = piece
    for rank, piece in enumerate(pieces):
        torch.testing.assert_close(whole[layout.slices(rank)], piece, rtol=0, atol=0, equal_nan=True)
    return whole


def whole_of(tensor: torch.Tensor) -> torch.Tensor:
    """A DTensor as one tensor, put together from its shards."""
    assert isinstance(tensor, DTensor)
    mesh = Mesh.from_device_mesh(tensor.device_mesh)
    return assembled(tensor.to_local(), Layout(tensor.shape, tensor.dtype, mesh, tensor.placements))


def close(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    """Equal up to the rounding of their dtype."""
    tolerance = {torch.float64: 1e-11, torch.float32: 2e-5}.get(expected.dtype, 0.0)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}")


def states_equal(distributed: nn.Module, expected: nn.Module, *, gradients: bool = False) -> None:
    """Every parameter and buffer, and on demand every gradient, equals that of a plain module."""
    assert list(distributed.state_dict()) == list(expected.state_dict())
    for name, tensor in expected.state_dict().items():
        close(whole_of(distributed.state_dict()[name]), tensor, name)
    if gradients:
        found = dict(distributed.named_parameters())
        for name, parameter in expected.named_parameters():
            assert parameter.grad is not None
            assert isinstance(found[name].grad, DTensor)
            assert found[name].grad.placements == found[name].placements
            close(whole_of(found[name].grad), parameter.grad, f"grad({name})")


def trained(
    model: nn.Module,
    optimizer: Callable[[Any], torch.optim.Optimizer],
    batches: Sequence[tuple[torch.Tensor, torch.Tensor]],
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> nn.Module:
    """A module after a step of the optimizer on each batch."""
    stepper = optimizer(model.parameters())
    for x, y in batches:
        stepper.zero_grad()
        loss(model(x), y).backward()
        stepper.step()
    return model


def trained_by_ddp(model: nn.Module, *args: Any) -> nn.Module:
    """The same under DistributedDataParallel."""
    wrapped = DistributedDataParallel(copy.deepcopy(model))
    trained(wrapped, *args)
    module: nn.Module = wrapped.module
    return module


def world_mesh(**axes: int) -> DeviceMesh:
    """A real mesh of all ranks."""
    return dist.device_mesh.init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
