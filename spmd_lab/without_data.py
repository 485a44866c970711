"""Calls of a program's operators on tensors without data: their shapes, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from spmd_lab.streams import draw_locally
from spmd_lab.torch_internals.operators import is_operator

if TYPE_CHECKING:
    from spmd_lab.mesh import Mesh

__all__ = ["call_without_data"]


def call_without_data(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: Mesh, device: str) -> Any:
    """Call what a node calls, on tensors without data; groups are those of a mesh's axes, named by them.

    Examples
    --------
    >>> from spmd_lab.mesh import Mesh
    >>> exchange, x = torch.ops._dtensor.shard_dim_alltoall.default, torch.empty(2, 8, device="meta")
    >>> call_without_data(exchange, (x, 0, 1, "tp"), {}, Mesh(tp=4), "meta").shape
    torch.Size([8, 2])
    """
    if target is torch.ops._dtensor.shard_dim_alltoall.default:
        tensor, gather_dim, shard_dim, axis = args
        shape = list(tensor.shape)
        shape[gather_dim] *= mesh.axis_size(axis)
        shape[shard_dim] //= mesh.axis_size(axis)
        return tensor.new_empty(shape)
    if target is draw_locally:
        target, args = args[0], args[2:]  # nothing is drawn without data
    if is_operator(target) and kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": device}
    return target(*args, **kwargs)
