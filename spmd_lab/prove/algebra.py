"""Follows layouts through the very graph that runs, by a small algebra of its own.

On each mesh axis a value is whole, divided, or pending with a kind of reduction. A collective changes that state, and
is only right in one of them; what moves data about does not complete a reduction. Numbers cannot show a dropped
reduction of zeros, or of noise; this can.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import fx
from torch.distributed.tensor import Partial, Replicate

from spmd_lab.prove.collectives import is_collective, request_of
from spmd_lab.prove.contractions import summed_dims

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spmd_lab.expand import Expansion, Operand, Step
    from spmd_lab.layout import Layout
    from spmd_lab.prove.collectives import Request

__all__ = ["Finding", "State", "check_graph", "check_steps", "state_of", "transition"]

WHOLE, DIVIDED = "whole", "divided"
State = tuple[str, ...]
"""For each mesh axis "whole", "divided", or the kind of a pending reduction."""


class Finding(NamedTuple):
    """A place where the layouts do not follow from the nodes.

    Parameters
    ----------
    step, value : str
        The step, and the value or operand concerned.
    expected, got : str
        What should hold, and what does.
    reason : str
        In words.
    """

    step: str
    value: str
    expected: str
    got: str
    reason: str


class _Followed(NamedTuple):
    """What is known of a node: the value of the traced program that it is a form of, and its state."""

    origin: str
    state: State


def state_of(layout: Layout) -> State:
    """The state of a layout on each axis; an axis of one rank is whole, whatever it is called.

    Examples
    --------
    >>> from spmd_lab import Layout, Mesh
    >>> state_of(Layout.parse("f32[8/dp, 4]{sum: tp}", Mesh(dp=2, tp=4, pp=1)))
    ('divided', 'sum', 'whole')
    """
    return tuple(
        WHOLE
        if size == 1 or isinstance(placement, Replicate)
        else str(placement.reduce_op)
        if isinstance(placement, Partial)
        else DIVIDED
        for size, placement in zip(layout.mesh.shape, layout.placements, strict=True)
    )


def transition(state: str, request: Request) -> str | None:
    """The state on the axis of a collective once it is carried out; None where it must not be.

    Examples
    --------
    >>> from spmd_lab.prove.collectives import Request
    >>> transition("sum", Request("all_reduce", "tp", "sum")), transition("whole", Request("all_reduce", "tp", "sum"))
    ('whole', None)
    """
    pending = state not in (WHOLE, DIVIDED)
    if request.kind in ("all_reduce", "reduce_scatter"):
        after = WHOLE if request.kind == "all_reduce" else DIVIDED
        return after if pending and state == request.reduce_op else None
    if state != DIVIDED:
        return None
    return WHOLE if request.kind == "all_gather" else DIVIDED


def _leads_to(reached: State, wanted: State) -> bool:
    """Whether data movement may turn one into the other: only what is whole can be divided, or made pending."""
    return all(here == there or here == WHOLE for here, there in zip(reached, wanted, strict=True))


def _words(state: State, expansion: Expansion) -> str:
    """The state in words, axis by axis."""
    parts = [
        f"{here} over {axis}" if here in (WHOLE, DIVIDED) else f"a pending {here} over {axis}"
        for axis, here in zip(expansion.mesh.axes, state, strict=True)
    ]
    return ", ".join(parts)


# --- the steps ----------------------------------------------------------------------------------


def check_steps(expansion: Expansion) -> Iterator[Finding]:
    """Hold the layouts that steps claim against each other."""
    names = _Names(expansion)
    for step in expansion.steps:
        for operand in step.operands:
            claims = names.layouts(operand.name)
            if claims and operand.have not in claims:
                yield Finding(
                    step.name, operand.name, str(claims[0]), str(operand.have), "a step does not take a value as it is"
                )
        yield from _unreduced(expansion, step)


def _unreduced(expansion: Expansion, step: Step) -> Iterator[Finding]:
    """A sum over a dim that is divided is pending, unless the step itself communicates over that axis."""
    if step.op == "resolve" or not step.outputs or step.outputs[0] is None:
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


class _Names:
    """The values of a traced program by the names that steps use for them."""

    def __init__(self, expansion: Expansion) -> None:
        traced = expansion.traced
        self.values = expansion.layouts
        self.inputs = dict(zip((each.name for each in traced.inputs), expansion.input_layouts, strict=True))
        self.shown = {each.node: each.name for each in traced.inputs}
        self.resolved = {
            f"resolve:{output.name}": layout
            for output, layout in zip(traced.outputs, expansion.output_layouts, strict=True)
            if layout is not None
        }
        self.constants = {str(node.target): node.name for node in traced.graph_module.graph.nodes if node.op == "get_attr"}

    def layouts(self, name: str) -> list[Layout]:
        """The layouts of the values of this name: an input and a node may share it."""
        found = [self.inputs.get(name), self.values.get(name), self.resolved.get(name)]
        return [layout for layout in found if layout is not None]


# --- one graph ----------------------------------------------------------------------------------


def check_graph(expansion: Expansion, graph: fx.Graph) -> Iterator[Finding]:
    """Follow the layouts through the graph of a rank."""
    walk = _Walk(expansion, graph)
    inputs = iter(zip(expansion.traced.inputs, expansion.input_layouts, strict=True))
    for node in graph.nodes:
        if node.op == "placeholder":
            given, layout = next(inputs)
            walk.known[node] = _Followed(given.name, state_of(layout))
        elif node.op == "output":
            yield from walk.returned(node)
        else:
            yield from walk.visit(node)
    for step in expansion.steps:
        yield from walk.unmet(step)


class _Walk:
    """What is known on a walk over a graph."""

    def __init__(self, expansion: Expansion, graph: fx.Graph) -> None:
        self.expansion = expansion
        self.names = _Names(expansion)
        self.steps = {step.name: step for step in expansion.steps}
        self.known: dict[fx.Node, _Followed] = {}
        self.reads: dict[str, list[_Followed]] = {}
        carried = {node.meta.get("spmd_value") for node in graph.nodes}
        self.present = carried | set(self.names.inputs) | set(self.names.constants.values())

    def visit(self, node: fx.Node) -> Iterator[Finding]:
        """Follow one node."""
        name = node.meta.get("spmd_step")
        if node.op == "get_attr" and name is None:
            origin = self.names.constants.get(str(node.target), node.name)
            self.known[node] = _Followed(origin, (WHOLE,) * self.expansion.mesh.ndim)
            return
        moves = name is None or "spmd_operand" in node.meta
        if moves:
            yield from self.moved(node)
        elif name in self.steps:
            yield from self.read(node, self.steps[name])
        value = node.meta.get("spmd_value")
        claims = self.names.layouts(value) if value is not None else []
        if claims:
            reached, claimed = self.known.get(node), state_of(claims[-1])
            if moves and reached is not None and not _leads_to(reached.state, claimed):
                yield self.finding(name or value, value, claims[-1], reached.state, "the nodes lead to another state")
            self.known[node] = _Followed(value, claimed)

    def moved(self, node: fx.Node) -> Iterator[Finding]:
        """A node that moves the data of one value, or reduces it."""
        known = [self.known[each] for each in node.all_input_nodes if each in self.known]
        if not known:
            return
        first = known[0]
        step = node.meta.get("spmd_step", first.origin)
        if any(each != first for each in known):
            if "spmd_operand" in node.meta:
                other = next(each for each in known if each != first)
                got = f"{other.origin}, {_words(other.state, self.expansion)}"
                wanted = f"{first.origin}, {_words(first.state, self.expansion)}"
                yield Finding(step, first.origin, wanted, got, "a redistribution mixes different values")
            return
        self.known[node] = first
        if node.op == "call_function" and is_collective(node.target):
            yield from self.communicated(node, step, first)

    def communicated(self, node: fx.Node, step: str, before: _Followed) -> Iterator[Finding]:
        """A collective on a value whose state is known."""
        mesh = self.expansion.mesh
        _, request = request_of(node.target, node.args, node.kwargs)
        if request.axis not in mesh.axes or mesh.axis_size(request.axis) == 1:
            return
        position = mesh.axis_index(request.axis)
        after = transition(before.state[position], request)
        if after is None:
            wanted = f"a pending {request.reduce_op}" if request.reduce_op else DIVIDED
            got = _words(before.state, self.expansion)
            yield Finding(step, before.origin, f"{wanted} over {request.axis}", got, f"{request} asks for another state")
            after = WHOLE if request.kind in ("all_reduce", "all_gather") else DIVIDED
        state = (*before.state[:position], after, *before.state[position + 1 :])
        self.known[node] = _Followed(before.origin, state)

    def read(self, node: fx.Node, step: Step) -> Iterator[Finding]:
        """A node of a local program: what it reads from outside must be an operand, as the step needs it."""
        for each in node.all_input_nodes:
            own = each.meta.get("spmd_step") == step.name
            found = self.known.get(each)
            if own and ("spmd_operand" not in each.meta or found is None):
                continue
            if found is None:
                yield Finding(step.name, each.name, "an operand", each.name, "it reads what is no value of the program")
                continue
            self.reads.setdefault(step.name, []).append(found)
            operands = self.operands(step, found.origin)
            if not operands:
                wanted = ", ".join(operand.name for operand in step.operands) or "nothing"
                yield Finding(step.name, found.origin, wanted, found.origin, "it reads what is none of its operands")
            elif not any(_leads_to(found.state, state_of(operand.need)) for operand in operands):
                yield self.finding(
                    step.name, operands[0].name, operands[0].need, found.state, "the operator needs it otherwise"
                )

    def operands(self, step: Step, origin: str) -> list[Operand]:
        """The operands that a value can be; a value without a node of its own can hide behind any other."""
        named = [operand for operand in step.operands if operand.name == origin]
        return named or [operand for operand in step.operands if operand.name not in self.present]

    def unmet(self, step: Step) -> Iterator[Finding]:
        """Operands that are read, but never in the state that the operator needs."""
        for operand in step.operands:
            reads = [read for read in self.reads.get(step.name, []) if operand in self.operands(step, read.origin)]
            need = state_of(operand.need)
            if reads and not any(_leads_to(read.state, need) for read in reads):
                yield self.finding(
                    step.name, operand.name, operand.need, reads[0].state, "its redistribution is missing"
                )

    def returned(self, node: fx.Node) -> Iterator[Finding]:
        """The outputs: each must be the value that its name says, in its layout."""
        traced = self.expansion.traced
        (wanted,) = next(iter(reversed(traced.graph_module.graph.nodes))).args
        outputs = zip(traced.outputs, self.expansion.output_layouts, node.args[0], wanted, strict=True)
        for output, layout, value, origin in outputs:
            if layout is None or not isinstance(origin, fx.Node) or not isinstance(value, fx.Node):
                continue
            name = f"resolve:{output.name}"
            step = name if name in self.steps else _producer(origin)
            name = step if name in self.steps else self.names.shown.get(origin.name, origin.name)
            found = self.known.get(value)
            if found is None or (found.origin != name and name in self.present):
                got = found.origin if found else value.name
                yield Finding(step, output.name, name, got, f"what is returned as {output.name} is another value")
            elif not _leads_to(found.state, state_of(layout)):
                reason = f"what is returned as {output.name} is in another state"
                yield self.finding(step, output.name, layout, found.state, reason)

    def finding(self, step: str, value: str, wanted: Layout, reached: State, reason: str) -> Finding:
        return Finding(step, value, str(wanted), _words(reached, self.expansion), reason)


def _producer(node: fx.Node) -> str:
    source = node.args[0] if node.target is operator.getitem else node
    return source.name if isinstance(source, fx.Node) else node.name
