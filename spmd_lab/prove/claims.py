"""Holds the layouts that the steps of an expansion claim against each other."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from spmd_lab.prove.algebra import DIVIDED, WHOLE, Finding, serves_as, state_of
from spmd_lab.prove.contractions import summed_dims
from spmd_lab.prove.names import Names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spmd_lab.expand import Expansion, Step
    from spmd_lab.layout import Layout

__all__ = ["check_steps"]


def check_steps(expansion: Expansion) -> Iterator[Finding]:
    """Hold the layouts that steps claim against each other."""
    names = Names(expansion)
    for step in expansion.steps:
        for operand in step.operands:
            claims = names.layouts(operand.name)
            if claims and operand.have not in claims:
                yield Finding(
                    step.name, operand.name, str(claims[0]), str(operand.have), "a step does not take a value as it is"
                )
        for value, layout in _made(expansion, step):
            claims = names.layouts(value)
            if layout is not None and claims and not any(serves_as(layout, claim) for claim in claims):
                reason = "a step does not leave a value as it is"
                yield Finding(step.name, value, str(claims[-1]), str(layout), reason)
        yield from _unreduced(expansion, step)


def _made(expansion: Expansion, step: Step) -> Iterator[tuple[str, Layout | None]]:
    """The values that a step makes, each with the layout that the step gives it."""
    if step.only_moves:
        yield step.name, step.operands[0].need
    elif len(step.outputs) == 1:
        yield step.name, step.outputs[0]
    else:
        for part in expansion.traced.node(step.name).users:
            if part.target is operator.getitem:
                yield part.name, step.outputs[int(str(part.args[1]))]


def _unreduced(expansion: Expansion, step: Step) -> Iterator[Finding]:
    """A sum over a dim that is divided is pending, unless the step itself communicates over that axis."""
    if step.only_moves or not step.outputs or step.outputs[0] is None:
        return
    own = {axis for each in step.collectives if each.operand == step.name for axis in each.axes}
    claimed = state_of(step.outputs[0])
    for position, dims in summed_dims(expansion.traced.node(step.name)).items():
        need = step.operands[position].need
        axes = {split.axis for dim in dims for split in need.splits(dim) if split.axis_size > 1}
        for axis in sorted(axes - own):
            here = claimed[expansion.mesh.axis_index(axis)]
            if here in (WHOLE, DIVIDED):
                yield Finding(
                    step.name,
                    step.name,
                    f"a pending reduction over {axis}",
                    str(step.outputs[0]),
                    f"it sums over a dim of {step.operands[position].name} that is divided over {axis}",
                )
