"""From the arguments of `expand` to a layout for every input of the program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch.distributed.tensor import Replicate, Shard

from spmd_lab.errors import ArgumentError, expect, nearest
from spmd_lab.expand.patterns import match_parameters, place
from spmd_lab.layout import Layout, replicated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spmd_lab.mesh import Mesh
    from spmd_lab.trace.values import TracedGraph, TracedInput

__all__ = ["batch_inputs", "input_layouts", "layouts_at_rest", "requested_outputs"]


def input_layouts(
    traced: TracedGraph,
    mesh: Mesh,
    params: Mapping[str, object],
    inputs: Mapping[str, object] | Sequence[object],
    batch: str | Sequence[str] | None,
) -> dict[str, Layout]:
    """The layout of every input but the tangents, by name: Replicate where nothing else is said.

    Raises
    ------
    SpmdLabError
        If an argument fits neither the program nor the mesh; the text names it.
    """
    layouts = {
        found.name: replicated(found.global_shape, found.dtype, mesh)
        for found in traced.inputs
        if found.role != "tangent"
    }
    layouts |= match_parameters(traced, mesh, params)
    for found in batch_inputs(traced, mesh, batch):
        axis = _batch_axis(batch or "")
        placements = [Shard(0) if axis == each else Replicate() for each in mesh.axes]
        layouts[found.name] = layouts[found.name].with_placements(placements)
    return layouts | _given(traced, mesh, inputs)


def layouts_at_rest(
    traced: TracedGraph, mesh: Mesh, stored: Mapping[str, object], used: Mapping[str, Layout]
) -> dict[str, Layout]:
    """The layouts at rest of the parameters and buffers that rest otherwise than they are used, by name.

    Raises
    ------
    SpmdLabError
        If a rule fits neither the program nor the mesh; the text names it.
    """
    found = match_parameters(traced, mesh, stored, "stored", used)
    for name, layout in found.items():
        if layout.is_pending:
            raise ArgumentError(
                f"{name!r} cannot rest as a pending reduction",
                argument="stored",
                layouts={name: layout},
                hint="divide or replicate it",
            )
    return {name: layout for name, layout in found.items() if layout != used[name]}


def batch_inputs(traced: TracedGraph, mesh: Mesh, batch: str | Sequence[str] | None) -> tuple[TracedInput, ...]:
    """The inputs whose dim 0 ``batch`` divides: those it names, else all whose dim 0 is as long as the first one's."""
    if batch is None:
        return ()
    argument = f"batch={batch!r}"
    expect(batch, (str, list, tuple), argument, 'batch="dp", or batch=("dp", "tokens")')
    if not batch:
        raise ArgumentError("no axis is named", argument=argument, hint='batch="dp"')
    axis, names = _batch_axis(batch), () if isinstance(batch, str) else tuple(batch[1:])
    if axis not in mesh.axes:
        raise ArgumentError(f"{mesh!r} has no axis {axis!r}", argument=argument, hint=nearest(str(axis), mesh.axes))
    ours = _tensor_inputs(traced)
    for name in names:
        if name in mesh.axes and name not in {each.name for each in ours}:
            raise ArgumentError(
                f"batch divides over one axis; {name!r} is a second one",
                argument=argument,
                hint=f'inputs={{"{ours[0].name if ours else "x"}": "b/{axis}/{name} ..."}} divides over both',
            )
    if names:
        found = tuple(_input(traced, name, argument) for name in names)
        for each in found:
            if not each.global_shape:
                raise ArgumentError(
                    f"{each.name!r} is a 0-d tensor and has no batch dim", argument=argument, hint="leave it out"
                )
        return found
    with_dims = [each for each in ours if each.global_shape]
    if not with_dims:
        raise ArgumentError(
            f"{traced.name} has no input with a dim to divide", argument=argument, hint="place inputs by inputs="
        )
    length = with_dims[0].global_shape[0]
    return tuple(each for each in with_dims if each.global_shape[0] == length)


def requested_outputs(traced: TracedGraph, mesh: Mesh, outputs: Mapping[str, object]) -> dict[str, Layout]:
    """The exact layouts that ``outputs=`` asks for, by name."""
    known = {found.name: found for found in traced.outputs}
    layouts = {}
    for name, spec in outputs.items():
        argument = f"outputs={{{name!r}: {spec!r}}}"
        found = known.get(name)
        if found is None:
            raise ArgumentError(f"{traced.name} has no output {name!r}", argument=argument, hint=nearest(name, known))
        if found.global_shape is None or found.dtype is None:
            raise ArgumentError(f"output {name!r} is no tensor", argument=argument, hint="leave it out")
        layouts[name] = place(spec, found.global_shape, found.dtype, mesh, argument)
    return layouts


def _batch_axis(batch: str | Sequence[str]) -> str:
    return batch if isinstance(batch, str) else batch[0]


def _tensor_inputs(traced: TracedGraph) -> list[TracedInput]:
    return [found for found in traced.inputs if found.role == "input"]


def _given(traced: TracedGraph, mesh: Mesh, inputs: Mapping[str, object] | Sequence[object]) -> dict[str, Layout]:
    """The layouts that ``inputs=`` states: by name, or by position without what a function closes over."""
    if isinstance(inputs, Mapping):
        pairs = [(_input(traced, name, f"inputs={{{name!r}: ...}}"), spec) for name, spec in inputs.items()]
    else:
        hint = 'by name: inputs={"x": "b/dp d"}; or a list, in order: inputs=["b/dp d"]'
        expect(inputs, (list, tuple), "inputs", hint)
        ours = [found for found in _tensor_inputs(traced) if not found.closure]
        if len(inputs) > len(ours):
            raise ArgumentError(
                f"{len(inputs)} layouts for the {len(ours)} tensor inputs of {traced.name}",
                argument=f"inputs={list(inputs)!r}",
                hint=f"in order: {', '.join(found.name for found in ours)}",
            )
        pairs = [(found, spec) for found, spec in zip(ours, inputs, strict=False) if spec is not None]
    return {
        found.name: place(spec, found.global_shape, found.dtype, mesh, f"inputs={{{found.name!r}: {spec!r}}}")
        for found, spec in pairs
    }


def _input(traced: TracedGraph, name: str, argument: str) -> TracedInput:
    ours = {found.name: found for found in _tensor_inputs(traced)}
    if name in ours:
        return ours[name]
    others = [each for found in traced.inputs if found.role in ("parameter", "buffer") for each in found.names]
    hint = "parameters and buffers are placed by params=" if name in others else nearest(name, ours)
    raise ArgumentError(f"{traced.name} has no input {name!r}", argument=argument, hint=hint)
