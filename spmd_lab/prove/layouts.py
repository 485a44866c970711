"""Follows the layouts through the very graph that a rank runs, from its inputs to its outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import fx

from spmd_lab.prove.algebra import DIVIDED, WHOLE, Finding, State, in_words, leads_to, serves_as, state_of, transition
from spmd_lab.prove.collectives import is_collective, request_of
from spmd_lab.prove.names import Names
from spmd_lab.prove.one_rank import operand_ends
from spmd_lab.trace.uses import producer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spmd_lab.expand import Expansion, Operand, Step
    from spmd_lab.layout import Layout
    from spmd_lab.prove.collectives import Request
    from spmd_lab.trace import TracedGraph

__all__ = ["check_graph"]


_SEVERAL = ""
"""The origin of what holds several values at once, as a pass may put them together."""
_HIDDEN = "hidden operands"
"""Where the operands of a step stand whose values no node carries."""


class _Followed(NamedTuple):
    """What is known of a node: the value of the traced program that it is a form of, its state, and its layout.

    On the way from one layout to another there is none.
    """

    origin: str
    state: State
    layout: Layout | None = None

    def fits(self, name: str, wanted: Layout) -> bool:
        """Whether it can be taken for the value of a name that lies on the mesh so.

        That of another name, which hides behind it, may have another shape: of that only the state is known.
        """
        known = self.origin == name and self.layout is not None
        return (not known or serves_as(self.layout, wanted)) and leads_to(self.state, state_of(wanted))


def check_graph(expansion: Expansion, graph: fx.Graph) -> Iterator[Finding]:
    """Follow the layouts through the graph of a rank."""
    walk = _Walk(expansion, graph)
    inputs = iter(zip(expansion.traced.inputs, expansion.input_layouts, strict=True))
    for node in graph.nodes:
        if node.op == "placeholder":
            given, layout = next(inputs)
            walk.known[node] = _Followed(given.name, state_of(layout), layout)
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
        self.by_name: dict[str, dict[str, list[Operand]]] = {}
        self.own: dict[str, list[Request]] = {}
        self.ends = operand_ends(graph)
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
            self.arrived(node)
        elif name in self.steps:
            yield from self.read(node, self.steps[name])
        if name in self.steps and node not in self.known and is_collective(node.target) and node.users:
            self.own.setdefault(name, []).append(request_of(node.target, node.args, node.kwargs)[1])
        value = str(node.meta.get("spmd_value", ""))
        claims = self.names.layouts(value)
        if claims:
            reached, claimed = self.known.get(node), state_of(claims[-1])
            if moves and reached is not None and not leads_to(reached.state, claimed):
                yield self.finding(name or value, value, claims[-1], reached, "the nodes lead to another state")
            if moves and reached is not None and name in self.steps and self.steps[name].only_moves:
                yield from self.moves_its_own(self.steps[name], value, reached)
            self.known[node] = _Followed(value, claimed, claims[-1])

    def moved(self, node: fx.Node) -> Iterator[Finding]:
        """A node that moves the data of one value, or reduces it."""
        known = [self.known[each] for each in node.all_input_nodes if each in self.known]
        if not known:
            return
        first = known[0]
        step = node.meta.get("spmd_step", first.origin)
        other = next((each for each in known if each[:2] != first[:2]), None)
        if other is not None:
            if "spmd_operand" in node.meta:
                got = f"{other.origin}, {in_words(other.state, self.expansion.mesh)}"
                wanted = f"{first.origin}, {in_words(first.state, self.expansion.mesh)}"
                yield Finding(step, first.origin, wanted, got, "a redistribution mixes different values")
            elif (joint := _joint_state([each.state for each in known])) is not None:
                self.known[node] = _Followed(_SEVERAL, joint)
            return
        self.known[node] = _Followed(first.origin, first.state)
        if node.op == "call_function" and is_collective(node.target):
            yield from self.communicated(node, step, first)

    def moves_its_own(self, step: Step, value: str, reached: _Followed) -> Iterator[Finding]:
        """What a step moves must be its operand."""
        name = step.operands[0].name
        wanted = self.names.shown.get(name, name)
        if reached.origin not in (wanted, _SEVERAL) and wanted in self.present:
            yield Finding(step.name, value, wanted, reached.origin, "it moves another value")

    def arrived(self, node: fx.Node) -> None:
        """The end of a redistribution: what the operator needs, as far as states go; numbers show the rest."""
        step, index, _ = self.ends.get(node, ("", 0, node))
        found = self.known.get(node)
        if found is not None and step in self.steps:
            operand = self.steps[step].operands[index]
            if found.fits(operand.name, operand.need):
                self.known[node] = _Followed(found.origin, state_of(operand.need), operand.need)

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
            elif not any(found.fits(operand.name, operand.need) for operand in operands):
                reason = "the operator needs it otherwise"
                yield self.finding(step.name, operands[0].name, operands[0].need, found, reason)

    def operands(self, step: Step, origin: str) -> Sequence[Operand]:
        """The operands that a value can be; a value without a node of its own can hide behind any other."""
        if origin == _SEVERAL:
            return step.operands
        return self.operands_of(step).get(origin) or self.operands_of(step)[_HIDDEN]

    def operands_of(self, step: Step) -> dict[str, list[Operand]]:
        """The operands of a step by their names, and once more those whose values no node carries."""
        if step.name not in self.by_name:
            found: dict[str, list[Operand]] = {
                _HIDDEN: [each for each in step.operands if each.name not in self.present]
            }
            for operand in step.operands:
                found.setdefault(operand.name, []).append(operand)
            self.by_name[step.name] = found
        return self.by_name[step.name]

    def unmet(self, step: Step) -> Iterator[Finding]:
        """Operands that are read, but never in the state that the operator needs.

        Fewer strangers than hidden operands may stand for any of them: some are read under another's name, or not.
        """
        named = self.operands_of(step)
        reads: dict[str, list[_Followed]] = {}
        for read in self.reads.get(step.name, []):
            reads.setdefault(read.origin, []).append(read)
        strangers = [origin for origin in reads if origin != _SEVERAL and origin not in named]
        if len(strangers) >= len({operand.name for operand in named[_HIDDEN]}):
            behind = [read for origin in strangers for read in reads[origin]]
            reads.update({operand.name: behind for operand in named[_HIDDEN]})
        for operand in step.operands:
            found = reads.get(operand.name, [])
            if found and not any(read.fits(operand.name, operand.need) for read in found):
                yield self.finding(step.name, operand.name, operand.need, found[0], "its redistribution is missing")

    def unannounced(self, step: Step) -> Iterator[Finding]:
        """Collectives of a local program, where states are not followed: they must be those that the step announces."""
        announced = [
            f"{each.kind}({', '.join([*([each.reduce_op] if each.reduce_op else []), *each.axes])})"
            for each in step.collectives
            if each.operand == step.name
        ]
        runs = [str(request) for request in self.own.get(step.name, [])]
        if not step.only_moves and runs != announced:
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
            step = name if name in self.steps else producer(origin).name
            name = step if name in self.steps else self.names.shown.get(origin.name, origin.name)
            found = self.known.get(value)
            if found is None or (found.origin not in (name, _SEVERAL) and name in self.present):
                got = found.origin if found else value.name
                yield Finding(step, output.name, name, got, f"what is returned as {output.name} is another value")
            elif not found.fits(name, layout):
                reason = f"what is returned as {output.name} is in another state"
                yield self.finding(step, output.name, layout, found, reason)

    def finding(self, step: str, value: str, wanted: Layout, reached: _Followed, reason: str) -> Finding:
        got = in_words(reached.state, self.expansion.mesh)
        if reached.layout is not None and leads_to(reached.state, state_of(wanted)):
            got = str(reached.layout)
        return Finding(step, value, str(wanted), got, reason)


def _joint_state(states: Sequence[State]) -> State | None:
    """The state of values that are put together, if they are in one: of what was whole, parts may have been taken."""
    return next((state for state in states if all(leads_to(each, state) for each in states)), None)


def _is_local(node: fx.Node) -> bool:
    """Whether a node is of the local program of its step, and neither of a redistribution nor added by a pass."""
    return "spmd_operand" not in node.meta and "spmd_added" not in node.meta


def _last(traced: TracedGraph) -> fx.Node:
    last: fx.Node = next(iter(reversed(traced.graph_module.graph.nodes)))
    return last


def _flat(output: fx.Node) -> tuple[object, ...]:
    (returned,) = output.args
    return tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)
