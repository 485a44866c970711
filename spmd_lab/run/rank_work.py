"""What a real rank does when it is asked: call a function, or run its graph of a program."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import fx
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spmd_lab.saving import SavedProgram

__all__ = ["FunctionWork", "ProgramWork", "carried_to_cpu", "current_node"]

_NODE = "_spmd_lab_node"


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
    """A run of a program on the shards of whole tensors; ``lines`` gives the user's line of a step."""

    program: SavedProgram
    values: Sequence[torch.Tensor]
    lines: Mapping[str, str]

    def __call__(self) -> tuple[Any, ...]:
        """Run this rank's graph; its flat local outputs."""
        rank = dist.get_rank()
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        mesh = _device_mesh(device, self.program.mesh.shape, self.program.mesh.axes)
        graph = self.program.for_rank(rank, mesh)
        flat = [
            value[port.layout.slices(rank)].contiguous().to(device)
            for port, value in zip(self.program.inputs, self.values, strict=True)
            if port.layout is not None
        ]
        run = _NamedRun(graph, self.lines)
        return tuple(run.run(*flat))


@lru_cache(maxsize=16)
def _device_mesh(device: str, shape: tuple[int, ...], axes: tuple[str, ...]) -> DeviceMesh:
    """One mesh for all programs of these axes: each would bring groups of its own."""
    return init_device_mesh(device, shape, mesh_dim_names=axes)


class _NamedRun(fx.Interpreter):
    """Runs a graph node by node, so that a failure names its node, step and line."""

    def __init__(self, graph: fx.GraphModule, lines: Mapping[str, str]) -> None:
        super().__init__(graph)
        self.extra_traceback = False
        self._lines = lines

    def run_node(self, n: fx.Node) -> Any:
        try:
            return super().run_node(n)
        except BaseException as error:
            step = n.meta.get("spmd_step", "")
            line = self._lines.get(step, "")
            told = f"{n.name}, of step {step}" if step else n.name
            error.__dict__.setdefault(_NODE, f"{told}, {line}" if line else told)
            raise


def current_node(error: BaseException) -> str | None:
    """The node in which a run of a program failed."""
    found: str | None = error.__dict__.get(_NODE)
    return found


def carried_to_cpu(value: Any) -> Any:
    """A result that another process can hold: tensors without graph, on the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(carried_to_cpu(each) for each in value)
    if type(value) is dict:
        return {key: carried_to_cpu(each) for key, each in value.items()}
    return value
