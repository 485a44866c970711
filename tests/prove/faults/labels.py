"""What can be wrong with what an expansion says of a right graph: the graph is for another layout."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.layout import Layout
from tests.prove.faults.places import Mistake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import spmd_lab as sl
    from spmd_lab.expand import Step


def mislabelled_value(program: sl.Program) -> Iterator[Mistake]:
    """A step says of its output, and so do all who read it, that it lies on the mesh as it does not."""
    for step in program.expansion.steps:
        if len(step.outputs) == 1 and step.outputs[0] is not None and step.name in program.expansion.layouts:
            for wrong in _others(step.outputs[0]):
                yield _mistake(step.name, f"{step.outputs[0]} as {wrong}", _of_value(step.name, wrong))


def mislabelled_operand(program: sl.Program) -> Iterator[Mistake]:
    """A step says of an operand that it has, or needs, another layout than the graph is made for."""
    for step in program.expansion.steps:
        for position, operand in enumerate(step.operands):
            for wrong in _others(operand.need):
                yield _mistake(
                    step.name, f"{operand.name} needed as {wrong}", _of_operand(step.name, position, need=wrong)
                )
            for wrong in _others(operand.have):
                yield _mistake(
                    step.name, f"{operand.name} taken as {wrong}", _of_operand(step.name, position, have=wrong)
                )


def mislabelled_output(program: sl.Program) -> Iterator[Mistake]:
    """What is returned is said to lie on the mesh as it does not."""
    expansion = program.expansion
    steps = {step.name for step in expansion.steps}
    for position, (output, layout) in enumerate(zip(expansion.traced.outputs, expansion.output_layouts, strict=True)):
        step = f"resolve:{output.name}"
        if layout is None or step not in steps:
            continue
        for wrong in _others(layout):
            yield _mistake(step, f"{layout} as {wrong}", _of_output(position, wrong))


def _mistake(step: str, where: str, change: Callable[[sl.Expansion], sl.Expansion]) -> Mistake:
    return Mistake(step, where, lambda program: replace(program, expansion=change(program.expansion)))


def _others(layout: Layout) -> Iterator[Layout]:
    """Other layouts of the same tensor: one axis is whole, divided along another dim, or pending.

    What is whole is a pending maximum, too: that would be no mistake.
    """
    if not layout.dtype.is_floating_point:
        return
    for position, placement in enumerate(layout.placements):
        kinds = ("sum",) if isinstance(placement, Replicate) else ("sum", "max")
        for wrong in (Replicate(), *map(Partial, kinds), *map(Shard, range(len(layout.global_shape)))):
            if wrong != placement:
                placements = (*layout.placements[:position], wrong, *layout.placements[position + 1 :])
                yield Layout(layout.global_shape, layout.dtype, layout.mesh, placements)


def _of_value(name: str, wrong: Layout) -> Callable[[sl.Expansion], sl.Expansion]:
    def relabelled(step: Step) -> Step:
        operands = tuple(replace(each, have=wrong) if each.name == name else each for each in step.operands)
        return replace(step, operands=operands, outputs=(wrong,) if step.name == name else step.outputs)

    def change(expansion: sl.Expansion) -> sl.Expansion:
        layouts = {**expansion.layouts, name: wrong}
        return replace(expansion, layouts=layouts, steps=tuple(map(relabelled, expansion.steps)))

    return change


def _of_operand(name: str, position: int, **wrong: Layout) -> Callable[[sl.Expansion], sl.Expansion]:
    def relabelled(step: Step) -> Step:
        if step.name != name:
            return step
        operands = list(step.operands)
        operands[position] = replace(operands[position], **wrong)
        return replace(step, operands=tuple(operands))

    return lambda expansion: replace(expansion, steps=tuple(map(relabelled, expansion.steps)))


def _of_output(position: int, wrong: Layout) -> Callable[[sl.Expansion], sl.Expansion]:
    def change(expansion: sl.Expansion) -> sl.Expansion:
        before, after = expansion.output_layouts[:position], expansion.output_layouts[position + 1 :]
        return replace(expansion, output_layouts=(*before, wrong, *after))

    return change
