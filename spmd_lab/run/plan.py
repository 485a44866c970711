"""What one kind of call runs: the rank's program in two halves, and how autograd's values go in and out of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.distributed.tensor import Partial, Replicate

from spmd_lab.errors import ArgumentError
from spmd_lab.expand import expand
from spmd_lab.expand.arguments import input_layouts
from spmd_lab.run.calls import dense, dims_by_stride
from spmd_lab.run.closures import closed_over
from spmd_lab.run.halves import Halves, split

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from spmd_lab.expand import Expansion
    from spmd_lab.layout import Layout
    from spmd_lab.mesh import Mesh
    from spmd_lab.trace import TracedGraph, TracedInput, TracedOutput

__all__ = ["Plan", "Request", "make_plan"]


@dataclass(frozen=True, eq=False)
class Request:
    """What the user asked of `distribute`; the names are those of its arguments."""

    module: nn.Module
    loss: Callable[[Any], torch.Tensor] | None
    mesh: Mesh
    device_mesh: DeviceMesh
    rank: int
    params: Mapping[str, object]
    inputs: Mapping[str, object] | Sequence[object]
    batch: str | Sequence[str] | None
    outputs: Mapping[str, object]
    pending: Literal["resolve", "keep"]
    global_inputs: bool
    grad: Literal["mean", "sum"]


@dataclass(frozen=True)
class _Tangent:
    """One tangent: which returned tensor it belongs to (None: a new value), and what it is scaled by, by axis."""

    returned: int | None
    layout: Layout
    order: tuple[int, ...]
    scales: Mapping[str, float]


@dataclass(frozen=True)
class _Gradient:
    """One gradient: the input that it belongs to, and the axes on which it is that of the rank's own mean."""

    input: int
    local_axes: frozenset[str]


@dataclass(frozen=True, eq=False)
class Plan:
    """What one kind of call runs on one rank.

    Parameters
    ----------
    expansion : Expansion
        Where it comes from.
    halves : Halves
        The bound program.
    rank : int
        Whose it is.
    inputs : tuple of (TracedInput, Layout)
        What the forward takes, in order.
    returned : tuple of int
        Which results of the forward are returned tensors.
    writes : tuple of (int, int)
        Results that are written into inputs: the position of each, and of its input.
    closures : mapping of int to str
        The inputs that the loss closes over, and the names by which it knows them.
    """

    expansion: Expansion
    halves: Halves
    rank: int
    inputs: tuple[tuple[TracedInput, Layout], ...]
    returned: tuple[int, ...]
    writes: tuple[tuple[int, int], ...]
    closures: Mapping[int, str]
    _tangents: tuple[_Tangent, ...]
    _gradients: tuple[_Gradient, ...]

    @property
    def is_differentiable(self) -> bool:
        """Whether there is anything for autograd to come back for."""
        return any(tangent.returned is not None for tangent in self._tangents)

    @property
    def without_gradient(self) -> tuple[int, ...]:
        """The positions of the returned tensors that have none."""
        with_one = {tangent.returned for tangent in self._tangents}
        return tuple(index for index in range(len(self.returned)) if index not in with_one)

    def forward(self, values: Sequence[torch.Tensor]) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """Run the forward, and write new values into their tensors: the returned tensors, and those to save."""
        made = self.halves.forward(*values)
        for result, target in self.writes:
            values[target].copy_(made[result])
        return tuple(made[index].detach() for index in self.returned), made[self.halves.results :]

    def backward(
        self, saved: Sequence[torch.Tensor], received: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor | None, ...]:
        """The gradient of each input, from the gradients of the returned tensors (None: not used).

        Gradients have storage of their own, so that what an optimizer does to one changes no other.
        """
        tangents, averaged = [], set()
        for tangent in self._tangents:
            given = None if tangent.returned is None else received[tangent.returned]
            if given is not None:
                averaged |= set(tangent.scales)
            tangents.append(self._tangent(tangent, given, saved, received))
        made = self.halves.backward(*saved, *tangents)
        gradients: list[torch.Tensor | None] = [None] * len(self.inputs)
        taken = {_storage(each) for each in [*saved, *received] if each is not None}
        for gradient, value in zip(self._gradients, made, strict=True):
            if value is None:
                continue
            size = math.prod(self.expansion.mesh.axis_size(axis) for axis in gradient.local_axes & averaged)
            own = value * size if size != 1 else value
            gradients[gradient.input] = own.clone() if _storage(own) in taken else own
            taken.add(_storage(own))
        return tuple(gradients)

    def _tangent(
        self,
        tangent: _Tangent,
        given: torch.Tensor | None,
        saved: Sequence[torch.Tensor],
        received: Sequence[torch.Tensor | None],
    ) -> torch.Tensor:
        if given is None:
            device = next(each.device for each in [*received, *saved] if each is not None)
            return torch.zeros(tangent.layout.local_shape(self.rank), dtype=tangent.layout.dtype, device=device)
        scale = math.prod(tangent.scales.values())
        return dense(given if scale == 1 else given * scale, tangent.order)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def make_plan(request: Request, traced: TracedGraph, whole_inputs: Collection[str], first: Expansion | None) -> Plan:
    """Expand what was traced, and cut the rank's program in two.

    Parameters
    ----------
    request : Request
        The user's.
    traced : TracedGraph
        Of a call of this kind.
    whole_inputs : collection of str
        The inputs whose gradient is that of the mean over all ranks.
    first : Expansion, optional
        That of the example: every tensor lies as it did there.
    """
    expansion = _expanded(request, traced, first)
    places = [index for index, each in enumerate(traced.inputs) if each.role != "tangent"]
    inputs = tuple((traced.inputs[index], expansion.input_layouts[index]) for index in places)
    position = {found.name: index for index, (found, _) in enumerate(inputs)}
    forward = [(index, output) for index, output in enumerate(traced.outputs) if output.role != "gradient"]
    new = [(place, output) for place, (_, output) in enumerate(forward) if output.role == "new value"]
    _refuse_written_inputs(traced, [output for _, output in new])
    writes = tuple((place, position[str(output.of)]) for place, output in new)
    returned = tuple(
        place
        for place, (index, output) in enumerate(forward)
        if output.role != "new value" and expansion.output_layouts[index] is not None
    )
    gradients = [index for index, output in enumerate(traced.outputs) if output.role == "gradient"]
    program = expansion.program.for_rank(request.rank, request.device_mesh)
    tangents = set(range(len(traced.inputs))) - set(places)
    axes = _batch_axes(request, inputs)
    known = {id(tensor): name for name, tensor in closed_over(request.loss).items()}
    names = {forward[place][1].name: index for index, place in enumerate(returned)}
    return Plan(
        expansion=expansion,
        halves=split(program, tangents, gradients, written={target for _, target in writes}),
        rank=request.rank,
        inputs=inputs,
        returned=returned,
        writes=writes,
        closures={
            index: known[id(traced.values[index])]
            for index, (found, _) in enumerate(inputs)
            if found.closure and id(traced.values[index]) in known
        },
        _tangents=tuple(_tangent_of(expansion, index, names, axes) for index in sorted(tangents)),
        _gradients=tuple(
            _gradient_of(inputs, position[str(traced.outputs[index].of)], whole_inputs, axes) for index in gradients
        ),
    )


def _expanded(request: Request, traced: TracedGraph, first: Expansion | None) -> Expansion:
    """The expansion, with every gradient and every new value where its input is."""
    params, inputs, batch = request.params, request.inputs, request.batch
    if first is not None:
        known = {
            name: list(layout.placements)
            for found, layout in zip(first.traced.inputs, first.input_layouts, strict=True)
            for name in found.names
        }
        state = [found.name for found in traced.inputs if found.role in ("parameter", "buffer")]
        params = {name: known[name] for name in state if name in known}
        inputs = {
            found.name: known[found.name] for found in traced.inputs if found.role == "input" and found.name in known
        }
        batch = None
    given = input_layouts(traced, request.mesh, params, inputs, batch)
    _refuse_pending_state(traced, given)
    following = {
        output.name: [Replicate() if isinstance(each, Partial) else each for each in given[str(output.of)].placements]
        for output in traced.outputs
        if output.of is not None and output.global_shape is not None
    }
    _refuse_placed(request, traced)
    outputs = {**request.outputs, **following}
    return expand(traced, request.mesh, params, inputs, batch, outputs, request.pending)


def _refuse_placed(request: Request, traced: TracedGraph) -> None:
    for output in traced.outputs:
        if output.of is not None and output.name in request.outputs:
            raise ArgumentError(
                f"{output.name} lies where {output.of} does",
                argument=f"outputs={{{output.name!r}: ...}}",
                hint=f"place {output.of!r} instead",
            )


def _refuse_pending_state(traced: TracedGraph, given: Mapping[str, Layout]) -> None:
    for found in traced.inputs:
        if found.role in ("parameter", "buffer") and given[found.name].is_pending:
            raise ArgumentError(
                f"{found.role} {found.name!r} cannot be held as a pending reduction",
                argument="params",
                layouts={found.name: given[found.name]},
                hint="divide or replicate it",
            )


def _refuse_written_inputs(traced: TracedGraph, outputs: Sequence[TracedOutput]) -> None:
    for output in outputs:
        found = traced.input(str(output.of))
        if found.role == "input":
            raise ArgumentError(
                f"{traced.name} writes into its input {found.name!r}",
                argument=found.name,
                hint="work on a clone inside forward, or register the tensor as a buffer",
            )


def _batch_axes(request: Request, inputs: Sequence[tuple[TracedInput, Layout]]) -> frozenset[str]:
    """The axes over which local losses are averaged."""
    if request.grad == "sum":
        return frozenset()
    if request.batch is not None:
        return frozenset([request.batch if isinstance(request.batch, str) else request.batch[0]])
    return frozenset(
        part.axis
        for found, layout in inputs
        if found.role == "input" and not found.closure and layout.global_shape
        for part in layout.splits(0)
    )


def _dividing_axes(layout: Layout) -> frozenset[str]:
    return frozenset(part.axis for dim in range(len(layout.global_shape)) for part in layout.splits(dim))


def _tangent_of(expansion: Expansion, index: int, returned: Mapping[str, int], axes: frozenset[str]) -> _Tangent:
    traced, layout = expansion.traced, expansion.input_layouts[index]
    name = traced.inputs[index].name.removeprefix("tangent(").removesuffix(")")
    scales = {axis: 1 / expansion.mesh.axis_size(axis) for axis in axes & _dividing_axes(layout)}
    return _Tangent(returned.get(name), layout, dims_by_stride(traced.values[index]), scales)


def _gradient_of(
    inputs: Sequence[tuple[TracedInput, Layout]], index: int, whole: Collection[str], axes: frozenset[str]
) -> _Gradient:
    found, layout = inputs[index]
    local = found.role == "input" and not found.closure and found.name not in whole
    return _Gradient(index, axes & _dividing_axes(layout) if local else frozenset())
