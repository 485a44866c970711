"""What one kind of call runs: the rank's program in two halves, and how autograd's values go in and out of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from spmd_lab.errors import ArgumentError
from spmd_lab.run.closures import closed_over
from spmd_lab.run.halves import Halves, split
from spmd_lab.run.memory import Taken
from spmd_lab.run.placing import batch_axes, expanded, with_pending_gradients

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.expand import Expansion
    from spmd_lab.layout import Layout
    from spmd_lab.rebuild import Program
    from spmd_lab.run.placing import Request
    from spmd_lab.trace import TracedGraph, TracedInput, TracedOutput

__all__ = ["Plan", "make_plan"]


@dataclass(frozen=True)
class _Tangent:
    """One tangent: which returned tensor it belongs to (None: a new value), and what it is scaled by, by axis."""

    returned: int | None
    layout: Layout
    scales: Mapping[str, float]


@dataclass(frozen=True)
class _Gradient:
    """One gradient: the input that it belongs to, how it lies, and the axes on which it is of the rank's own mean."""

    input: int
    layout: Layout
    local_axes: frozenset[str]


@dataclass(frozen=True, eq=False)
class Plan:
    """What one kind of call runs on one rank.

    Parameters
    ----------
    program : Program
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

    program: Program
    halves: Halves
    rank: int
    inputs: tuple[tuple[TracedInput, Layout], ...]
    returned: tuple[int, ...]
    writes: tuple[tuple[int, int], ...]
    closures: Mapping[int, str]
    _tangents: tuple[_Tangent, ...]
    _gradients: tuple[_Gradient, ...]

    @property
    def expansion(self) -> Expansion:
        """That of the program."""
        return self.program.expansion

    @property
    def is_differentiable(self) -> bool:
        """Whether there is anything for autograd to come back for."""
        return any(tangent.returned is not None for tangent in self._tangents)

    @cached_property
    def draws(self) -> bool:
        """Whether it draws random numbers: all of them in the forward, whose masks the backward reads."""
        return any(step.draw_bytes for step in self.expansion.steps)

    @cached_property
    def gradient_placements(self) -> Mapping[int, tuple[Placement, ...]]:
        """How the gradient of each input lies on the mesh, by its position."""
        return {gradient.input: gradient.layout.placements for gradient in self._gradients}

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
        self, saved: list[torch.Tensor], received: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor | None, ...]:
        """The gradient of each input, from the gradients of the returned tensors (None: not used).

        What was saved is given up: the list is empty afterwards, and its tensors go as soon as they are read. Gradients
        have memory of their own, so that what an optimizer does to one changes no other.
        """
        tangents, averaged = [], set()
        for tangent in self._tangents:
            given = None if tangent.returned is None else received[tangent.returned]
            if given is not None:
                averaged |= set(tangent.scales)
            tangents.append(self._tangent(tangent, given, saved, received))
        saved += tangents
        taken = Taken()
        lent = [saved[position] for position in self.halves.lent]
        for each in [*lent, *received]:
            if each is not None:
                taken.whole(each)
        made = self.halves.backward(saved)
        del lent  # what it holds could not become the memory of another gradient until now
        gradients: list[torch.Tensor | None] = [None] * len(self.inputs)
        for gradient, value in zip(self._gradients, made, strict=True):
            if value is not None:
                size = math.prod(self.expansion.mesh.axis_size(axis) for axis in gradient.local_axes & averaged)
                gradients[gradient.input] = taken.own(value * size if size != 1 else value)
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
        return given if scale == 1 else given * scale


def make_plan(
    request: Request,
    traced: TracedGraph,
    whole: Collection[int],
    first: Expansion | None,
    *,
    reduced: bool = True,
) -> Plan:
    """Expand what was traced, and cut the rank's program in two.

    Parameters
    ----------
    request : Request
        The user's.
    traced : TracedGraph
        Of a call of this kind.
    whole : collection of int
        The tensor arguments that are passed whole: their gradient is that of the mean over all ranks.
    first : Expansion, optional
        That of the example: every tensor lies as it did there.
    reduced : bool
        Whether the gradients of parameters are; else they stay pending.
    """
    expansion = expanded(request, traced, first)
    if not reduced:
        expansion = with_pending_gradients(request, expansion)
    places = [index for index, each in enumerate(traced.inputs) if each.role != "tangent"]
    inputs = tuple((traced.inputs[index], expansion.input_layouts[index]) for index in places)
    passed = [index for index, (found, _) in enumerate(inputs) if found.role == "input" and not found.closure]
    local = {index for place, index in enumerate(passed) if place not in whole}
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
    program = expansion.program.rewrite(*request.passes)
    tangents = set(range(len(traced.inputs))) - set(places)
    axes = batch_axes(request, expansion) if request.grad == "mean" else frozenset[str]()
    known = {id(tensor): name for name, tensor in closed_over(request.loss).items()}
    names = {forward[place][1].name: index for index, place in enumerate(returned)}
    return Plan(
        program=program,
        halves=split(
            program.for_rank(request.rank, request.device_mesh),
            tangents,
            gradients,
            written={target for _, target in writes},
            compiled=request.compiled,
        ),
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
            _gradient_of(inputs, position[str(traced.outputs[index].of)], expansion.output_layouts[index], local, axes)
            for index in gradients
        ),
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


def _dividing_axes(layout: Layout) -> frozenset[str]:
    return frozenset(part.axis for dim in range(len(layout.global_shape)) for part in layout.splits(dim))


def _tangent_of(expansion: Expansion, index: int, returned: Mapping[str, int], axes: frozenset[str]) -> _Tangent:
    traced, layout = expansion.traced, expansion.input_layouts[index]
    name = traced.inputs[index].name.removeprefix("tangent(").removesuffix(")")
    scales = {axis: 1 / expansion.mesh.axis_size(axis) for axis in axes & _dividing_axes(layout)}
    return _Tangent(returned.get(name), layout, scales)


def _gradient_of(
    inputs: Sequence[tuple[TracedInput, Layout]],
    index: int,
    layout: Layout | None,
    local: Collection[int],
    axes: frozenset[str],
) -> _Gradient:
    given = inputs[index][1]
    return _Gradient(index, layout or given, axes & _dividing_axes(given) if index in local else frozenset())
