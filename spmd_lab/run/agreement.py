"""What ranks tell one another, so that none of them decides alone."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from spmd_lab.mesh import Mesh

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

c10d = torch.ops._c10d_functional

__all__ = ["broadcast", "digest", "exchange", "exchange_digests"]


def digest(value: object) -> int:
    """A number that tells values apart by their ``repr``, the same in every process.

    Examples
    --------
    >>> digest((8, "float32")) == digest((8, "float32")), digest(1) == digest(True)
    (True, False)
    """
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest(), "little", signed=True)


def exchange_digests(number: int, device_mesh: DeviceMesh) -> tuple[int, ...]:
    """The number that each rank of a mesh holds, in the order of the mesh: one small all_gather per axis."""
    held = torch.tensor([number], dtype=torch.int64, device=device_mesh.device_type)
    for axis in reversed(range(device_mesh.ndim)):
        group = device_mesh.get_group(axis).group_name
        gathered = c10d.all_gather_into_tensor.default(held, device_mesh.size(axis), group)
        held = c10d.wait_tensor.default(gathered)
    return tuple(held.tolist())


def exchange(value: object, device_mesh: DeviceMesh) -> list[Any]:
    """The value that each rank of a mesh holds, in the order of the mesh."""
    held = [value]
    for axis in reversed(range(device_mesh.ndim)):
        gathered: list[Any] = [None] * device_mesh.size(axis)
        dist.all_gather_object(gathered, held, group=device_mesh.get_group(axis))
        held = [each for part in gathered for each in part]
    return held


def broadcast(tensor: torch.Tensor, device_mesh: DeviceMesh) -> torch.Tensor:
    """A copy of the tensor that the first rank of a mesh holds; it is sent as bytes, so every dtype can be."""
    mesh = Mesh.from_device_mesh(device_mesh)
    copy = tensor.detach().to(device_mesh.device_type, copy=True)
    sent = copy.contiguous().reshape(-1).view(torch.uint8)
    for axis in range(mesh.ndim):
        dist.broadcast(sent, group=device_mesh.get_group(axis), group_src=0)
    received = sent.view(tensor.dtype).reshape(tensor.shape)
    return received if copy.is_contiguous() else copy.copy_(received)
