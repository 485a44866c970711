"""Follows the layouts through the very graph that a rank runs, from its inputs to its outputs."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, NamedTuple

from torch import fx

from spmd_lab.prove.algebra import DIVIDED, WHOLE, Finding, State, in_words, leads_to, state_of, transition
from spmd_lab.prove.collectives import is_collective, request_of
from spmd_lab.prove.names import Names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spmd_lab.expand import Expansion, Operand, Step
    from spmd_lab.layout import Layout
    from spmd_lab.prove.collectives import Request
    from spmd_lab.trace import TracedGraph

__all__ = ["check_graph"]


_SEVERAL = ""
"""The origin of what holds several values at once, as a pass may put them together."""


class _Followed(NamedTuple):
    """What is known of a node: the value of the traced program that it is a form of, and its state."""

    origin: str
    state: State


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
        yield from walk.unannounced(step)


class _Walk:
    """What is known on a walk over a graph."""

    def __init__(self, expansion: Expansion, graph: fx.Graph) -> None:
        self.expansion = expansion
        self.names = Names(expansion)
        self.steps = {step.name: step for step in expansion.steps}
        self.known: dict[fx.Node, _Followed] = {}
        self.reads: dict[str, list[_Followed]] = {}
        self.own: dict[str, list[Request]] = {}
        carried = {node.meta.get("spmd_value") for node in graph.nodes}
        self.present = carried | set(self.names.inputs) | set(self.names.constants.values())

    def visit(self, node: fx.Node) -> Iterator[Finding]:
        """Follow one node."""
        name = node.meta.get("spmd_step")
        if node.op == "get_attr" and name is None:
            origin = self.names.constants.get(str(node.target), node.name)
            self.known[node] = _Followed(origin, (WHOLE,) * self.expansion.mesh.ndim)
            return
        moves = name is None or not _is_local(node)
        if moves:
            yield from self.moved(node)
        elif name in self.steps:
            yield from self.read(node, self.steps[name])
        if name in self.steps and node not in self.known and is_collective(node.target) and node.users:
            self.own.setdefault(name, []).append(request_of(node.target, node.args, node.kwargs)[1])
        value = str(node.meta.get("spmd_value", ""))
        claims = self.names.layouts(value)
        if claims:
            reached, claimed = self.known.get(node), state_of(claims[-1])
            if moves and reached is not None and not leads_to(reached.state, claimed):
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
                got = f"{other.origin}, {in_words(other.state, self.expansion.mesh)}"
                wanted = f"{first.origin}, {in_words(first.state, self.expansion.mesh)}"
                yield Finding(step, first.origin, wanted, got, "a redistribution mixes different values")
            elif all(each.state == first.state for each in known):
                self.known[node] = _Followed(_SEVERAL, first.state)
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
            got = in_words(before.state, mesh)
            reason = f"{request} asks for another state"
            yield Finding(step, before.origin, f"{wanted} over {request.axis}", got, reason)
            after = WHOLE if request.kind in ("all_reduce", "all_gather") else DIVIDED
        state = (*before.state[:position], after, *before.state[position + 1 :])
        self.known[node] = _Followed(before.origin, state)

    def read(self, node: fx.Node, step: Step) -> Iterator[Finding]:
        """A node of a local program: what it reads from outside must be an operand, as the step needs it."""
        for each in node.all_input_nodes:
            own = each.meta.get("spmd_step") == step.name
            found = self.known.get(each)
            if own and (_is_local(each) or found is None):
                continue
            if found is None:
                yield Finding(step.name, each.name, "an operand", each.name, "it reads what is no value of the program")
                continue
            self.reads.setdefault(step.name, []).append(found)
            operands = self.operands(step, found.origin)
            if not operands:
                wanted = ", ".join(operand.name for operand in step.operands) or "nothing"
                yield Finding(step.name, found.origin, wanted, found.origin, "it reads what is none of its operands")
            elif not any(leads_to(found.state, state_of(operand.need)) for operand in operands):
                yield self.finding(
                    step.name, operands[0].name, operands[0].need, found.state, "the operator needs it otherwise"
                )

    def operands(self, step: Step, origin: str) -> list[Operand]:
        """The operands that a value can be; a value without a node of its own can hide behind any other."""
        named = [operand for operand in step.operands if origin in (operand.name, _SEVERAL)]
        return named or [operand for operand in step.operands if operand.name not in self.present]

    def unmet(self, step: Step) -> Iterator[Finding]:
        """Operands that are read, but never in the state that the operator needs."""
        for operand in step.operands:
            reads = [read for read in self.reads.get(step.name, []) if operand in self.operands(step, read.origin)]
            need = state_of(operand.need)
            if reads and not any(leads_to(read.state, need) for read in reads):
                yield self.finding(
                    step.name, operand.name, operand.need, reads[0].state, "its redistribution is missing"
                )

    def unannounced(self, step: Step) -> Iterator[Finding]:
        """Collectives of a local program, where states are not followed: they must be those that the step announces."""
        announced = [
            f"{each.kind}({', '.join([*([each.reduce_op] if each.reduce_op else []), *each.axes])})"
            for each in step.collectives
            if each.operand == step.name
        ]
        runs = [str(request) for request in self.own.get(step.name, [])]
        if step.op != "resolve" and runs != announced:
            expected, got = (", ".join(each) or "no collective" for each in (announced, runs))
            yield Finding(step.name, step.name, expected, got, "its own collectives are not those that it announces")

    def returned(self, node: fx.Node) -> Iterator[Finding]:
        """The outputs: each must be the value that its name says, in its layout."""
        traced = self.expansion.traced
        outputs = zip(traced.outputs, self.expansion.output_layouts, _flat(node), _flat(_last(traced)), strict=True)
        for output, layout, value, origin in outputs:
            if layout is None or not isinstance(origin, fx.Node) or not isinstance(value, fx.Node):
                continue
            name = f"resolve:{output.name}"
            step = name if name in self.steps else _producer(origin)
            name = step if name in self.steps else self.names.shown.get(origin.name, origin.name)
            found = self.known.get(value)
            if found is None or (found.origin not in (name, _SEVERAL) and name in self.present):
                got = found.origin if found else value.name
                yield Finding(step, output.name, name, got, f"what is returned as {output.name} is another value")
            elif not leads_to(found.state, state_of(layout)):
                reason = f"what is returned as {output.name} is in another state"
                yield self.finding(step, output.name, layout, found.state, reason)

    def finding(self, step: str, value: str, wanted: Layout, reached: State, reason: str) -> Finding:
        return Finding(step, value, str(wanted), in_words(reached, self.expansion.mesh), reason)


def _is_local(node: fx.Node) -> bool:
    """Whether a node is of the local program of its step, and neither of a redistribution nor added by a pass."""
    return "spmd_operand" not in node.meta and "spmd_added" not in node.meta


def _last(traced: TracedGraph) -> fx.Node:
    last: fx.Node = next(iter(reversed(traced.graph_module.graph.nodes)))
    return last


def _flat(output: fx.Node) -> tuple[object, ...]:
    (returned,) = output.args
    return tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)


def _producer(node: fx.Node) -> str:
    source = node.args[0] if node.target is operator.getitem else node
    return source.name if isinstance(source, fx.Node) else node.name
