"""`trace`: from a module or a function to the program of one device."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from torch import fx, nn
from torch.fx import traceback as fx_traceback

from spmd_lab.errors import SpmdLabError, TraceError
from spmd_lab.torch_internals.compiling import announced_capture
from spmd_lab.torch_internals.export import ExportedValue, JointGraph, export_joint, said_to_be_traced
from spmd_lab.torch_internals.fakes import FakeTensorMode, fake_like, is_fake, is_fake_of, is_traced_value, quiet_failures
from spmd_lab.trace.closures import Reached, name_in_frame
from spmd_lab.trace.graph import CLOSING, GraphCopy
from spmd_lab.trace.program import Slot, UserProgram, gather
from spmd_lab.trace.recorder import Recorder
from spmd_lab.trace.reference import Plan, reference
from spmd_lab.trace.refusals import check_gradient, check_random, random_state_kept, refusal
from spmd_lab.trace.sources import attribute
from spmd_lab.trace.trees import Leaf
from spmd_lab.trace.values import Reference, TracedGraph, TracedInput, TracedOutput

__all__ = ["trace"]


def trace(
    fn: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    backward: bool = True,
) -> TracedGraph:
    """Record the program that one device runs, forward and backward, in ATen operators.

    Nothing is computed and no memory is used: every tensor is stood for by a fake one. Tensors and modules that
    ``fn`` or ``loss`` close over become named inputs and parameters. The user's module, its hooks and the random
    state are left as they were.

    Parameters
    ----------
    fn : module or function
        What to trace.
    *args
        Its example arguments, nested as you like; tensors may be real, fake or on meta.
    kwargs : mapping, optional
        Its keyword arguments.
    loss : callable, optional
        Takes what ``fn`` returns and gives a scalar: the backward starts there. Without it every differentiable
        output has a tangent, which is an input of the program.
    backward : bool, optional
        False for the forward only.

    Returns
    -------
    TracedGraph
        The graph, its inputs and outputs by the user's names, and a reference to compare with.

    Raises
    ------
    TraceError
        If the program is not one graph (a branch on data, a seed set inside), if the arguments do not fit, or if the
        loss is no scalar. It names the line.

    Examples
    --------
    >>> import torch
    >>> traced = trace(torch.nn.Linear(3, 2), torch.ones(4, 3), loss=lambda out: out.square().mean())
    >>> [(each.name, each.role) for each in traced.inputs]
    [('weight', 'parameter'), ('bias', 'parameter'), ('input', 'input')]
    >>> [each.name for each in traced.outputs]
    ['loss', 'out', 'grad(weight)', 'grad(bias)']
    """
    if not callable(fn):
        raise TraceError(f"{fn!r} cannot be called", argument="fn", hint="a torch.nn.Module or a function")
    if loss is not None and not callable(loss):
        raise TraceError(
            f"{loss!r} cannot be called", argument="loss", hint="a function of what the program returns, giving a scalar"
        )
    with _collector_paused():
        export = _Export(gather(fn, args, dict(kwargs or {}), loss), backward)
        try:
            joint = _exported(export)
        except _MoreTensors as more:
            export = _Export(gather(fn, args, dict(kwargs or {}), loss, more.found), backward, adopts=False)
            joint = _exported(export)
        return _traced(export, joint)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Let Python collect garbage afterwards: an export makes many objects, and looking through them is slow."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _MoreTensors(Exception):
    """The program uses tensors that were not found before it ran."""

    def __init__(self, found: Sequence[Reached]) -> None:
        super().__init__("tensors were found while tracing")
        self.found = found


class _Export(nn.Module):
    """The program as a module without parameters: flat tensors in, a tuple of tensors out."""

    def __init__(self, program: UserProgram, backward: bool, adopts: bool = True) -> None:
        super().__init__()
        self._program = (program,)
        self.mode = FakeTensorMode()
        self.differentiated = tuple(
            index for index, slot in enumerate(program.slots) if backward and slot.value.requires_grad
        )
        device = _device([slot.value for slot in program.slots])
        self.fakes = [
            fake_like(self.mode, slot.value, device, index in self.differentiated)
            for index, slot in enumerate(program.slots)
        ]
        self._paths = program.module_paths()
        self.recorder = Recorder(self._paths, self._known, check_random)
        self.leaves: tuple[Leaf, ...] = ()
        self._adopts = adopts
        self._exchange: dict[int, torch.Tensor] = {}
        self._more: dict[int, tuple[Reached, torch.Tensor]] = {}

    @property
    def program(self) -> UserProgram:
        """What is exported."""
        return self._program[0]

    def forward(self, *flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the user's program on the tensors of the export."""
        self._exchange = self.program.exchange(flat)
        results = self.program.run(flat, self._watched)
        check_random({}, None)
        tensors = results.tensors(lambda tensor: self._known(tensor, None))
        if self._more:
            raise _MoreTensors([reached for reached, _ in self._more.values()])
        self.leaves = results.leaves
        meta = fx_traceback.get_current_meta()
        meta["custom"] = {CLOSING: True}
        if self.program.loss is not None:
            tensors = [tensors[0], *(tensor.detach() for tensor in tensors[1:])]
        apart = tuple(tensor.clone() for tensor in tensors)
        meta.pop("custom")
        return apart

    @contextmanager
    def _watched(self) -> Iterator[None]:
        with announced_capture(), self.recorder.following_modules(), self.recorder:
            yield

    def _known(self, tensor: torch.Tensor, frame: FrameType | None) -> torch.Tensor:
        """What stands for a tensor that the program did not make."""
        known = self._exchange.get(id(tensor))
        if known is not None:
            check_gradient(tensor, known, frame)
            return known
        if is_traced_value(tensor) or is_fake_of(tensor, self.mode):
            return tensor
        if not self._adopts:
            return torch.ops.aten.lift_fresh_copy.default(tensor)
        if id(tensor) not in self._more:
            reached = (name_in_frame(tensor, frame, self._paths) or f"constant_{len(self._more)}", tensor)
            self._more[id(tensor)] = (reached, _stand_in(tensor, self.fakes))
        return self._more[id(tensor)][1]


def _stand_in(tensor: torch.Tensor, others: Sequence[torch.Tensor]) -> torch.Tensor:
    """A tensor of the export with the sizes of another."""
    device = others[0].device if others else torch.device("cpu")
    new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return new.requires_grad_(tensor.requires_grad)


def _device(tensors: Sequence[torch.Tensor]) -> torch.device:
    """Where all tensors of the export stand: with the real ones; else with the fake ones; else on the CPU."""
    real = [tensor.device for tensor in tensors if tensor.device.type != "meta" and not is_fake(tensor)]
    fake = [tensor.device for tensor in tensors if tensor.device.type != "meta"]
    candidates = real or fake or [torch.device("cpu")]
    return next((device for device in candidates if device.type != "cpu"), candidates[0])


def _exported(export: _Export) -> JointGraph:
    """The joint graph of a program; everything that is global is as it was afterwards."""

    def run() -> JointGraph:
        with quiet_failures(), random_state_kept(), torch.enable_grad(), fx_traceback.preserve_node_meta():
            return export_joint(export, export.fakes)

    try:
        return run()
    except _MoreTensors:
        raise
    except Exception as error:
        raise refusal(error, export.program.name, run) from _cause(error)


def _cause(error: Exception) -> Exception | None:
    return None if isinstance(error, SpmdLabError) else error


def _traced(export: _Export, joint: JointGraph) -> TracedGraph:
    """Name what was exported."""
    program = export.program
    copy = GraphCopy(joint, _constant_tangents(joint, program.loss is not None))
    kept = _kept(export, copy)
    inputs, values = [], []
    for index in kept:
        slot = program.slots[index]
        node = copy.placeholder(ExportedValue("input", index), slot.name)
        inputs.append(_input(slot, node.name))
        values.append(slot.value)
    outputs = _outputs(export, joint)
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
    return TracedGraph(
        name=program.name,
        graph_module=copy.finish(results, program.name),
        inputs=tuple(inputs),
        outputs=tuple(_shaped(output, result) for (output, _), result in zip(outputs, results, strict=True)),
        values=tuple(values),
        reference=_reference(export, kept, tangents, [value for _, value in outputs]),
    )


def _constant_tangents(joint: JointGraph, has_loss: bool) -> dict[ExportedValue, float]:
    """With a loss its tangent is 1, and nothing else has one: new values have no part in the backward."""
    return {each: 1.0 if each.of == "output" else 0.0 for each in _tangents(joint)} if has_loss else {}


def _tangents(joint: JointGraph) -> list[ExportedValue]:
    """In the order of the outputs: what is returned, then new values."""
    tangents = [value for _, value in joint.placeholders if value.kind == "tangent"]
    return sorted(tangents, key=lambda each: (each.of == "new value", each.index))


def _kept(export: _Export, copy: GraphCopy) -> tuple[int, ...]:
    """The slots that are inputs: everything but what was closed over and never used."""
    slots = export.program.slots
    used = [copy.is_used(ExportedValue("input", index)) for index in range(len(slots))]
    owners = {slot.owner for slot, is_used in zip(slots, used, strict=True) if is_used and slot.owner >= 0}
    return tuple(
        index
        for index, slot in enumerate(slots)
        if not slot.closure or used[index] or slot.owner in owners
    )


def _input(slot: Slot, node: str) -> TracedInput:
    return TracedInput(
        slot.name, slot.role, tuple(slot.value.shape), slot.value.dtype, node, slot.aliases, slot.closure
    )


def _outputs(export: _Export, joint: JointGraph) -> list[tuple[TracedOutput, Any]]:
    """Each output with where it comes from: loss, what is returned, new values, gradients."""
    program, slots = export.program, export.program.slots
    outputs: list[tuple[TracedOutput, Any]] = []
    count = 0
    if program.loss is not None:
        outputs.append((TracedOutput("loss", "loss", None, None), ExportedValue("output", 0)))
        count = 1
    for leaf in export.leaves:
        if isinstance(leaf.value, torch.Tensor):
            outputs.append((TracedOutput(leaf.name, "output", None, None), ExportedValue("output", count)))
            count += 1
        else:
            constant = leaf.value if isinstance(leaf.value, (bool, int, float, str)) else None
            outputs.append((TracedOutput(leaf.name, "output", None, None), constant))
    for value in sorted((value for _, value in joint.outputs if value.kind == "new value"), key=lambda each: each.index):
        name = slots[value.index].name
        outputs.append((TracedOutput(f"new({name})", "new value", None, None, name), value))
    for index in export.differentiated:
        name = slots[index].name
        outputs.append((TracedOutput(f"grad({name})", "gradient", None, None, name), ExportedValue("gradient", index)))
    return outputs


def _shaped(output: TracedOutput, result: Any) -> TracedOutput:
    if not isinstance(result, fx.Node):
        return output
    value = result.meta["val"]
    return replace(output, global_shape=tuple(value.shape), dtype=value.dtype)


def _reference(
    export: _Export, kept: Sequence[int], tangents: Sequence[ExportedValue], outputs: Sequence[Any]
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
