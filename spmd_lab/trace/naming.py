"""The traced program, named: its inputs and outputs in the user's terms."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from spmd_lab.torch_internals.export import ExportedValue, JointGraph
from spmd_lab.trace.graph import GraphCopy
from spmd_lab.trace.reference import Plan, reference
from spmd_lab.trace.refusals import check_operators
from spmd_lab.trace.sources import attribute
from spmd_lab.trace.values import Reference, Source, Structure, TracedGraph, TracedInput, TracedOutput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spmd_lab.trace.exporting import Export
    from spmd_lab.trace.slots import Slot
    from spmd_lab.trace.trees import Tree

__all__ = ["named"]


def named(export: Export, joint: JointGraph, *, open_loss: bool = False) -> TracedGraph:
    """Name what was exported.

    Parameters
    ----------
    export, joint : Export, JointGraph
        The export, and the graph that it gave.
    open_loss : bool
        Whether the tangent of the loss is an input, and not 1.
    """
    program = export.program
    constants = _constant_tangents(joint, open_loss) if program.loss is not None else {}
    copy = GraphCopy(joint, constants)
    kept = _kept(export, copy)
    inputs, values = [], []
    for index in kept:
        slot = program.slots[index]
        node = copy.placeholder(ExportedValue("input", index), slot.name)
        inputs.append(_input(slot, node.name))
        values.append(slot.value)
    outputs = _outputs(export, joint, kept)
    names = {value: output.name for output, value in outputs if isinstance(value, ExportedValue)}
    tangents = [value for value in _tangents(joint) if value not in copy.constants]
    for tangent in tangents:
        name = f"tangent({names[ExportedValue(tangent.of or 'output', tangent.index)]})"
        node = copy.placeholder(tangent, name)
        fake = node.meta["val"]
        inputs.append(TracedInput(name, "tangent", tuple(fake.shape), fake.dtype, node.name))
        values.append(fake)
    copy.copy_operators()
    results = [copy.output(value) if isinstance(value, ExportedValue) else value for _, value in outputs]
    attribute(copy.graph, copy.origin, export.recorder)
    check_operators(copy.graph, program.name)
    return TracedGraph(
        name=program.name,
        graph_module=copy.finish(results, program.name),
        inputs=tuple(inputs),
        outputs=tuple(_shaped(output, result) for (output, _), result in zip(outputs, results, strict=True)),
        values=tuple(values),
        reference=_reference(export, kept, tangents, [value for _, value in outputs]),
        structure=_structure(export.returned),
        notes=tuple(_recomputed_elsewhere(source) for source in export.recorder.checkpoints),
    )


def _recomputed_elsewhere(source: Source) -> str:
    return f"the checkpoint at {source.place} is recomputed by sl.distribute, and kept where one graph runs as a whole"


def _constant_tangents(joint: JointGraph, open_loss: bool) -> dict[ExportedValue, float]:
    """With a loss its tangent is 1, and nothing else has one: new values have no part in the backward."""
    constants = {each: 1.0 if each.of == "output" else 0.0 for each in _tangents(joint)}
    return {each: number for each, number in constants.items() if not (open_loss and number)}


def _tangents(joint: JointGraph) -> list[ExportedValue]:
    """In the order of the outputs: what is returned, then new values."""
    tangents = [value for _, value in joint.placeholders if value.kind == "tangent"]
    return sorted(tangents, key=lambda each: (each.of == "new value", each.index))


def _kept(export: Export, copy: GraphCopy) -> tuple[int, ...]:
    """The slots that are inputs: everything but what was closed over and never used."""
    slots = export.program.slots
    used = [copy.is_used(ExportedValue("input", index)) for index in range(len(slots))]
    modules = {slot.module for slot, is_used in zip(slots, used, strict=True) if is_used and slot.module >= 0}
    return tuple(index for index, slot in enumerate(slots) if not slot.closure or used[index] or slot.module in modules)


def _input(slot: Slot, node: str) -> TracedInput:
    shape = tuple(slot.value.shape)
    return TracedInput(slot.name, slot.role, shape, slot.value.dtype, node, slot.aliases, slot.closure, slot.owner)


def _outputs(export: Export, joint: JointGraph, kept: Sequence[int]) -> list[tuple[TracedOutput, Any]]:
    """Each output with where it comes from: loss, what is returned, new values, gradients."""
    program, slots = export.program, export.program.slots
    outputs: list[tuple[TracedOutput, Any]] = []
    count = 0
    if program.loss is not None:
        outputs.append((TracedOutput("loss", "loss", None, None), ExportedValue("output", 0)))
        count = 1
    for leaf in export.returned.leaves:
        if isinstance(leaf.value, torch.Tensor):
            outputs.append((TracedOutput(leaf.name, "output", None, None), ExportedValue("output", count)))
            count += 1
        else:
            constant = leaf.value if isinstance(leaf.value, (bool, int, float, str)) else None
            outputs.append((TracedOutput(leaf.name, "output", None, None), constant))
    for value in sorted(
        (value for _, value in joint.outputs if value.kind == "new value"), key=lambda each: each.index
    ):
        name = slots[value.index].name
        outputs.append((TracedOutput(f"new({name})", "new value", None, None, name), value))
    for index in sorted(set(export.differentiated) & set(kept)):
        name = slots[index].name
        outputs.append((TracedOutput(f"grad({name})", "gradient", None, None, name), ExportedValue("gradient", index)))
    return outputs


def _shaped(output: TracedOutput, result: Any) -> TracedOutput:
    if not isinstance(result, fx.Node):
        return output
    value = result.meta["val"]
    return replace(output, global_shape=tuple(value.shape), dtype=value.dtype)


def _reference(
    export: Export, kept: Sequence[int], tangents: Sequence[ExportedValue], outputs: Sequence[Any]
) -> Reference:
    """The reference of a program of which only some slots are kept."""
    place = {index: position for position, index in enumerate(kept)}
    program = replace(export.program, slots=tuple(export.program.slots[index] for index in kept))

    def moved(value: Any) -> Any:
        if isinstance(value, ExportedValue) and (value.kind != "output" and value.of != "output"):
            return replace(value, index=place[value.index])
        return value

    plan = Plan(
        tuple(place[index] for index in export.differentiated if index in place),
        tuple(moved(tangent) for tangent in tangents),
        tuple(moved(output) for output in outputs),
    )
    return reference(program, plan)


def _structure(returned: Tree) -> Structure:
    """How to put together what the program returns; it keeps no tensor of the export."""
    rebuild = returned.rebuild
    constants = [None if isinstance(leaf.value, torch.Tensor) else leaf for leaf in returned.leaves]

    def assemble(values: Sequence[Any]) -> Any:
        pairs = zip(constants, values, strict=True)
        return rebuild(iter([value if constant is None else constant.value for constant, value in pairs]))

    return Structure(assemble)
