"""The peer: the same model exported straight through DTensor parameters, over a fake process group."""

from __future__ import annotations

import copy
import gc
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import register_sharding
from torch.nn import functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed.device_mesh import DeviceMesh

    from spmd_lab import Expansion

__all__ = ["distributed_copy", "fake_world", "time_export"]


_aten = torch.ops.aten


@register_sharding(_aten._scaled_dot_product_flash_attention_for_cpu.default)
def _attention(*_args: object, **_kwargs: object) -> list[tuple[list[object], list[object]]]:
    """Torch has no rule for attention on CPU: the peer gets the two ways that matter, batch and heads."""
    ways = [Shard(0), Shard(1), Replicate()]
    return [([way] * 2, [way] * 3 + [None] * 2) for way in ways]


@register_sharding(_aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def _attention_backward(*_args: object, **_kwargs: object) -> list[tuple[list[object], list[object]]]:
    ways = [Shard(0), Shard(1), Replicate()]
    return [([way] * 3, [way] * 6 + [None] * 2) for way in ways]


@contextmanager
def fake_world(size: int) -> Iterator[None]:
    """A process group of one process that stands for ``size``."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


class _Trained(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(tokens).flatten(0, 1), targets.flatten())


def distributed_copy(model: nn.Module, expansion: Expansion, mesh: DeviceMesh) -> nn.Module:
    """A copy of the model whose parameters are DTensors, placed as the expansion places them."""
    distributed = copy.deepcopy(model)
    for name, parameter in list(distributed.named_parameters()):
        path, _, leaf = name.rpartition(".")
        placed = distribute_tensor(parameter.detach(), mesh, expansion.layout(name).placements, src_data_rank=None)
        setattr(distributed.get_submodule(path), leaf, nn.Parameter(placed))
    return distributed


def time_export(model: nn.Module, expansion: Expansion, inputs: dict[str, torch.Tensor]) -> float:
    """Seconds that the export takes, its parameters and inputs already distributed."""
    mesh = init_device_mesh("cpu", expansion.mesh.shape, mesh_dim_names=expansion.mesh.axes)
    trained = _Trained(distributed_copy(model, expansion, mesh))
    args = tuple(
        distribute_tensor(value, mesh, expansion.layout(name).placements, src_data_rank=None)
        for name, value in inputs.items()
    )
    made_inside = _MakesDTensors(mesh)
    gc.collect()
    start = time.perf_counter()
    with ExitStack() as stack, made_inside:
        aot_export_joint_with_descriptors(stack, trained, args, {})
    return time.perf_counter() - start


class _MakesDTensors(torch.overrides.TorchFunctionMode):
    """Tensors that the model makes itself (``torch.arange``) have to be DTensors too."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh = mesh

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is torch.arange:
            return DTensor.from_local(made, self.mesh, [Replicate()] * self.mesh.ndim, run_check=False)
        return made
