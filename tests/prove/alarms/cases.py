"""Random right programs, each on a mesh and in layouts of its own."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

import spmd_lab as sl
from tests.prove.alarms.building import Building
from tests.prove.alarms.lines import GROWS, UnfitError

if TYPE_CHECKING:
    from collections.abc import Callable

MESHES = ({"x": 2}, {"x": 3}, {"x": 4}, {"x": 2, "y": 2}, {"x": 2, "y": 3}, {"x": 4, "y": 2})
DTYPES = {torch.float32: 5, torch.float64: 2, torch.bfloat16: 2, torch.float16: 2}
LARGEST = {torch.float16: 2.0}
"""The power of ten up to which values go: beyond it sums overflow in some orders, and not in others."""


@dataclass(frozen=True)
class Case:
    """One program with all that it takes to prove it."""

    number: int
    dtype: torch.dtype
    mesh: sl.Mesh
    inputs: tuple[torch.Tensor, ...]
    placements: tuple[tuple[Placement, ...], ...]
    fn: Callable[..., Any]
    lines: tuple[str, ...]
    options: dict[str, Any]

    def program(self) -> sl.Program:
        """The program of its ranks."""
        loss = (lambda outputs: outputs[0].float().square().mean()) if self.options["loss"] else None
        traced = sl.trace(self.fn, *self.inputs, loss=loss, backward=self.options["backward"])
        expansion = sl.expand(traced, self.mesh, inputs=list(self.placements), pending=self.options["pending"])
        return sl.rebuild(expansion)

    def __str__(self) -> str:
        inputs = "; ".join(
            f"{list(value.shape)} {list(placements)}"
            for value, placements in zip(self.inputs, self.placements, strict=True)
        )
        return f"case {self.number}: {self.dtype}, {self.mesh}, {self.options}, {inputs}: {', '.join(self.lines)}"


def case(number: int, seed: int = 0) -> Case:
    """The case of a number: always the same."""
    draw = random.Random(f"{seed} {number}")
    dtype = draw.choices(list(DTYPES), list(DTYPES.values()))[0]
    scale = 10 ** draw.choice([0.0, draw.uniform(-6, min(6, LARGEST.get(dtype, 6)))])
    build = Building(draw, dtype, scale, infinite=draw.random() < 0.04)
    build.fresh([draw.randint(1, 7) for _ in range(draw.choice([1, 2, 2, 3, 3, 4]))], scale)
    for _ in range(draw.choice([1, 2, 3, 4, 5, 6, 8, 10])):
        _grow(build)
    mesh = sl.Mesh(**draw.choice(MESHES))
    outputs = _outputs(build)
    differentiable = _rounded(build.values[outputs[0]])
    options = {
        "backward": differentiable and draw.random() < 0.7,
        "loss": False,
        "pending": draw.choice(["resolve", "resolve", "keep"]),
    }
    options["loss"] = options["backward"] and draw.random() < 0.5
    placements = tuple(_placements(draw, value, mesh, build.infinite) for value in build.inputs)
    names = tuple(f"{line.name}{list(line.reads)}" for line in build.lines)
    return Case(number, dtype, mesh, tuple(build.inputs), placements, build.program(outputs), names, options)


def _grow(build: Building) -> None:
    """One more line, of any kind that fits; it begins with one of the newest values."""
    while True:
        rounded = [place for place, value in enumerate(build.values) if _rounded(value)]
        at = build.draw.choice(rounded[-2:])
        known = len(build.inputs), len(build.places), len(build.values)
        try:
            build.draw.choice(GROWS)(build, at)
        except (UnfitError, RuntimeError, IndexError, ValueError):  # torch says so itself where shapes do not fit
            del build.inputs[known[0] :], build.places[known[1] :], build.values[known[2] :]
            continue
        if build.values[-1].numel() <= 2000:
            return
        del build.inputs[known[0] :], build.places[known[1] :], build.values[known[2] :], build.lines[-1]


def _rounded(value: torch.Tensor) -> bool:
    return value.is_floating_point()


def _outputs(build: Building) -> list[int]:
    """The values that nobody reads, the last first."""
    read = {each for line in build.lines for each in line.reads}
    return [place for place in reversed(range(len(build.values))) if place not in read and build.places[place] is None]


def _placements(draw: random.Random, value: torch.Tensor, mesh: sl.Mesh, infinite: bool) -> tuple[Placement, ...]:
    """Anything that a tensor can be on each axis; pieces of what is infinite are no numbers."""
    kinds = ["sum", "sum", "avg", "max", "min"] if _rounded(value) and not infinite else []

    def one() -> Placement:
        chosen = draw.random()
        if chosen < 0.5 and value.ndim:
            return Shard(draw.randrange(value.ndim))
        if chosen < 0.7 and kinds:
            return Partial(draw.choice(kinds))
        return Replicate()

    placements = tuple(one() for _ in mesh.axes)
    pending = {each.reduce_op for each in placements if isinstance(each, Partial)}
    return (
        placements
        if len(pending) < 2
        else tuple(Replicate() if isinstance(each, Partial) else each for each in placements)
    )
