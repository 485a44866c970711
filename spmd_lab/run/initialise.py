"""First values for the tensors that ranks hold, made whole one submodule at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from spmd_lab.errors import ArgumentError
from spmd_lab.layout import Layout
from spmd_lab.mesh import Mesh
from spmd_lab.torch_internals.modules import get_tensor, with_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["initialise"]


def initialise(
    held: nn.Module,
    module: nn.Module,
    device_mesh: DeviceMesh,
    rank: int,
    init: Callable[[nn.Module], object] | None,
) -> None:
    """Initialise the submodules of the user's module, children first, and put this rank's shards where they are held.

    Parameters
    ----------
    held : nn.Module
        Holds the DTensors, under the names of the user's module.
    module : nn.Module
        The user's; it stays as it is.
    device_mesh : DeviceMesh
        The ranks.
    rank : int
        Whose shards.
    init : callable, optional
        Sets the tensors that a submodule holds itself; default: its ``reset_parameters``.

    Raises
    ------
    ArgumentError
        If a submodule that holds tensors has no ``reset_parameters``, and there is no ``init``.
    """
    found = [(path, child, _own_tensors(child)) for path, child in _children_first(module)]
    if init is None:
        _refuse_without_reset([(path, child) for path, child, own in found if own])
    device = torch.device(device_mesh.device_type)
    if any(tensor.is_meta for tensor in held.state_dict().values()) or any(each.is_meta for each in held.buffers()):
        held.to_empty(device=device)
    mesh = Mesh.from_device_mesh(device_mesh)
    for path, child, own in found:
        if own:
            whole = with_tensors(child, {name: _whole(tensor, device) for name, tensor in own.items()})
            with torch.device(device):
                (init or _reset)(whole)
            for name in own:
                _put_shard(get_tensor(whole, name), get_tensor(held, f"{path}.{name}".lstrip(".")), mesh, rank)


def _children_first(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every submodule with its path, each once, in the order of ``nn.Module.apply``."""
    seen: set[nn.Module] = set()

    def walk(path: str, each: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        if each not in seen:
            seen.add(each)
            for name, child in each.named_children():
                yield from walk(f"{path}.{name}".lstrip("."), child)
            yield path, each

    return walk("", module)


def _own_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}


def _whole(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """An empty tensor like the user's."""
    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


def _reset(module: nn.Module) -> None:
    module.reset_parameters()  # type: ignore[operator]


def _put_shard(whole: torch.Tensor, held: torch.Tensor, mesh: Mesh, rank: int) -> None:
    assert isinstance(held, DTensor)
    layout = Layout(held.shape, held.dtype, mesh, held.placements)
    with torch.no_grad():
        held.to_local().copy_(whole[layout.slices(rank)])


def _refuse_without_reset(modules: list[tuple[str, nn.Module]]) -> None:
    without = [f"{path or 'the module'} ({type(each).__name__})" for path, each in modules if not _can_reset(each)]
    if without:
        raise ArgumentError(
            f"no reset_parameters in {', '.join(without)}",
            argument="init",
            hint="initialise(init): a function that sets the tensors that a submodule holds itself",
        )


def _can_reset(module: nn.Module) -> bool:
    return callable(getattr(module, "reset_parameters", None))
