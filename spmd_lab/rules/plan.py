"""What a sharding rule is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.distributed.tensor import Replicate

from spmd_lab.layout import Layout
from spmd_lab.torch_internals.operators import OpOverload, default_of, operator_name, position_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx
    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.mesh import Mesh

__all__ = ["OpCall", "Plan", "TensorArg"]


@dataclass(frozen=True)
class TensorArg:
    """A tensor among the arguments of a call.

    Parameters
    ----------
    index : int
        Its position among the tensors of the call.
    layout : Layout
        The layout that it has.
    stride : tuple of int
        The strides of the whole tensor.
    """

    index: int
    layout: Layout
    stride: tuple[int, ...]


@dataclass(frozen=True)
class OpCall:
    """One call of an operator, to be planned.

    Parameters
    ----------
    op : OpOverload
        The operator.
    args, kwargs
        Its arguments, with a `TensorArg` for each tensor.
    tensors : tuple of TensorArg
        The tensors among them, in order.
    result : tensor, or tuple or list of tensors
        What it returns on one device: fake tensors, whole.
    mesh : Mesh
        The mesh.
    random : str
        "exact" draws the numbers of a single device, "local" lets each shard draw its own.
    """

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: tuple[TensorArg, ...]
    result: torch.Tensor | tuple[torch.Tensor | None, ...] | list[torch.Tensor | None] | None
    mesh: Mesh
    random: Literal["exact", "local"] = "exact"

    @property
    def has(self) -> tuple[Layout, ...]:
        """The layouts that the tensors have."""
        return tuple(tensor.layout for tensor in self.tensors)

    @property
    def gives_several(self) -> bool:
        """Whether it returns a tuple or a list."""
        return isinstance(self.result, (tuple, list))

    @property
    def results(self) -> tuple[torch.Tensor | None, ...]:
        """What it returns, flat; None where an output is None or no tensor."""
        several = self.result if isinstance(self.result, (tuple, list)) else (self.result,)
        return tuple(each if isinstance(each, torch.Tensor) else None for each in several)

    def output_layouts(self, placements: Sequence[Sequence[Placement] | None]) -> tuple[Layout | None, ...]:
        """The layout of each output, placed as given; None where there is no tensor."""
        return tuple(
            None if result is None or placed is None else Layout(result.shape, result.dtype, self.mesh, placed)
            for result, placed in zip(self.results, placements, strict=True)
        )

    @property
    def whole_outputs(self) -> tuple[Layout | None, ...]:
        """The layout of each output where every rank has all of it."""
        return self.output_layouts([[Replicate()] * self.mesh.ndim] * len(self.results))

    def argument(self, name: str) -> Any:
        """The value of an argument by its name in the operator's schema; its default where it is not given."""
        position = position_of(self.op, name)
        if position is not None and position < len(self.args):
            return self.args[position]
        return self.kwargs[name] if name in self.kwargs else default_of(self.op, name)

    @property
    def title(self) -> str:
        """The operator's name."""
        return operator_name(self.op)


@dataclass(frozen=True)
class Plan:
    """How a call runs on shards.

    Parameters
    ----------
    needs : tuple of Layout
        The layout that each tensor of the call must have.
    outputs : tuple of (Layout or None)
        The layout of each output.
    emit : callable
        Appends the local program to a builder: takes one node per tensor, and returns the output node, or a tuple of
        output nodes. For an operator with several outputs it may return the one node that holds them all.
    fallback : str or None
        Why everything was gathered, where it was.
    draw_bytes : int
        What each rank draws at random, in bytes: the whole tensor, whatever part of it the rank keeps.
    draws_locally : bool
        Whether shards draw numbers of their own, which no single device draws.
    """

    needs: tuple[Layout, ...]
    outputs: tuple[Layout | None, ...]
    emit: Callable[[LocalGraphBuilder, tuple[fx.Node, ...]], Any]
    fallback: str | None = None
    draw_bytes: int = 0
    draws_locally: bool = False
