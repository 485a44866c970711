"""What a real rank does when it is asked: call a function, or run its graph of a program."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from spmd_lab.run.named_run import NamedRun
from spmd_lab.run.same_program import require_same

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import fx

    from spmd_lab.saving import SavedProgram

__all__ = ["FunctionWork", "ProgramWork", "carried_to_cpu", "prepared", "work_on"]


@dataclass(frozen=True)
class FunctionWork:
    """A call of a function, the same on every rank."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self) -> Any:
        """Call it."""
        return self.function(*self.args, **self.kwargs)


@dataclass(frozen=True)
class ProgramWork:
    """A run of a program on one rank's flat inputs; ``lines`` gives the user's line of a step."""

    program: SavedProgram
    flat: Sequence[torch.Tensor]
    lines: Mapping[str, str]

    def __call__(self) -> tuple[Any, ...]:
        """Run this rank's graph; its flat local outputs."""
        graph, flat = prepared(self.program, self.flat)
        return tuple(NamedRun(graph, self.lines).run(*flat))


def prepared(program: SavedProgram, flat: Sequence[torch.Tensor]) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """This rank's graph, bound to the groups of a real mesh, and its inputs on its device.

    Raises
    ------
    RankError
        If another rank has another program.
    """
    require_same(program.digest, f"{program.name} on {program.mesh!r}")
    device = _device or ("cuda" if dist.get_backend() == "nccl" else "cpu")
    mesh = _device_mesh(device, program.mesh.shape, program.mesh.axes)
    graph = program.for_rank(dist.get_rank(), mesh)
    return graph, [value.to(device) for value in flat]


_device: str | None = None


def work_on(device: str | None) -> None:
    """Have programs run on "cpu" or "cuda" in this process."""
    global _device
    _device = device
    _device_mesh.cache_clear()


@lru_cache(maxsize=16)
def _device_mesh(device: str, shape: tuple[int, ...], axes: tuple[str, ...]) -> DeviceMesh:
    """One mesh for all programs of these axes: each would bring groups of its own."""
    return init_device_mesh(device, shape, mesh_dim_names=axes)


def carried_to_cpu(value: Any) -> Any:
    """A result that another process can hold: tensors without graph, on the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(carried_to_cpu(each) for each in value)
    if type(value) is dict:
        return {key: carried_to_cpu(each) for key, each in value.items()}
    return value
