"""Graphs as records of pictures: that of a traced program, and the dispatch subgraph of a step."""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from spmd_lab.collectives import WAIT, axis_of, is_collective, kind_of
from spmd_lab.records.code import global_comment, op_name
from spmd_lab.records.layouts import layout_record
from spmd_lab.show.graph_records import EdgeRecord, GraphRecord, NodeRecord
from spmd_lab.show.sentences import short_op
from spmd_lab.show.units import bytes_text, counted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from torch import fx

    from spmd_lab.collectives import CollectiveKind
    from spmd_lab.expand.values import Step
    from spmd_lab.trace.values import TracedGraph

__all__ = ["inputs_of", "output_records", "read_from", "step_graph_record", "traced_graph_record"]

# --- the dispatch subgraph of a step ------------------------------------------------------------


def step_graph_record(step: Step) -> GraphRecord:
    """Operands, what happens to them, the local operator, and what comes out."""
    graph = step.local_graph.graph
    nodes = [node for node in graph.nodes if node.op != "output"]
    merged = _merge_chains(nodes)
    records = [_step_node(step, merged, node) for node in nodes if merged[node] is node]
    outputs, ends = _step_outputs(step, graph, merged)
    edges = [*_edges(nodes, merged), *ends]
    told = ", ".join(f"{found.kind}({', '.join(found.axes)})" for found in step.collectives)
    alt = f"dispatch subgraph of {step.name}, {step.op}: {told or 'no communication'}"
    return GraphRecord(alt=alt, downward=False, nodes=(*records, *outputs), edges=_distinct(edges))


def _merge_chains(nodes: list[fx.Node]) -> dict[fx.Node, fx.Node]:
    """Which node stands for each: waits and readings of tuples join their producer, local moves the one before."""
    merged: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        before = [merged[found] for found in node.all_input_nodes]
        joins = len(before) == 1 and (_is_reading(node) or (_is_local_move(node) and _is_local_move(before[0])))
        merged[node] = before[0] if joins else node
    return merged


def _is_reading(node: fx.Node) -> bool:
    return node.op == "call_function" and (node.target in (operator.getitem, WAIT))


def _is_local_move(node: fx.Node) -> bool:
    """Whether a node belongs to the redistribution of an operand, and is local."""
    return node.op == "call_function" and "spmd_operand" in node.meta and not is_collective(node)


def _step_node(step: Step, merged: dict[fx.Node, fx.Node], node: fx.Node) -> NodeRecord:
    members = [member for member, head in merged.items() if head is node]
    if node.op == "placeholder":
        return _operand_node(step, node, [each for each in merged if each.op == "placeholder"].index(node))
    if node.op == "get_attr":
        return NodeRecord(node.name, "operand", (str(node.target),))
    kind = kind_of(node)
    if kind is not None:
        return _collective_node(step, node, kind)
    names = [short_op(op_name(member.target)) for member in members if not _is_reading(member)]
    if _is_local_move(node):
        return NodeRecord(node.name, "local", (", ".join(dict.fromkeys(names)),))
    return NodeRecord(node.name, "op", tuple(names), backward=step.phase == "backward")


def _operand_node(step: Step, node: fx.Node, position: int) -> NodeRecord:
    if position >= len(step.operands):
        return NodeRecord(node.name, "operand", (node.name,))
    operand = step.operands[position]
    return NodeRecord(node.name, "operand", (operand.name, layout_record(operand.have).text))


def _collective_node(step: Step, node: fx.Node, kind: CollectiveKind) -> NodeRecord:
    """The collective that a node carries out, with its axis and bytes."""
    axis = axis_of(node)
    operand = node.meta.get("spmd_operand")
    name = step.operands[operand].name if isinstance(operand, int) and operand < len(step.operands) else None
    found = [each for each in step.collectives if each.kind == kind and axis in each.axes]
    exact = [each for each in found if each.operand == name] or found
    size = (bytes_text(exact[0].payload_bytes),) if exact else ()
    position = exact[0].have.mesh.axes.index(axis) if exact else -1
    return NodeRecord(node.name, kind, (f"{kind}({axis})", *size), position)


def _step_outputs(
    step: Step, graph: fx.Graph, merged: dict[fx.Node, fx.Node]
) -> tuple[list[NodeRecord], list[EdgeRecord]]:
    returned = next(node for node in reversed(graph.nodes) if node.op == "output").args[0]
    values = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    records, edges = [], []
    for position, (value, layout) in enumerate(zip(values, step.outputs, strict=False)):
        if value is None or layout is None:
            continue
        key = f"output:{position}"
        records.append(NodeRecord(key, "output", (layout_record(layout).text,)))
        edges.append(EdgeRecord(merged[value].name, key))
    return records, edges


def _edges(nodes: Iterable[fx.Node], merged: dict[fx.Node, fx.Node]) -> list[EdgeRecord]:
    return [
        EdgeRecord(merged[before].name, merged[node].name)
        for node in nodes
        for before in node.all_input_nodes
        if merged[before] is not merged[node]
    ]


def _distinct(edges: Iterable[EdgeRecord]) -> tuple[EdgeRecord, ...]:
    return tuple(dict.fromkeys(edges))


# --- a traced program ---------------------------------------------------------------------------


def traced_graph_record(traced: TracedGraph) -> GraphRecord:
    """Every node."""
    nodes = list(traced.graph_module.graph.nodes)
    inputs = inputs_of(traced, nodes)
    heads = {node: read_from(node) for node in nodes if node.op != "output"}
    drawn = {node.name: node for node, head in heads.items() if head is node}
    records = [
        NodeRecord(name, "operand", (inputs[node].name, global_comment(node)), module=inputs[node].module)
        if node in inputs
        else _traced_node(traced, node)
        for name, node in drawn.items()
    ]
    outputs, ends = output_records(traced, nodes[-1], heads)
    backward = {node.key for node in (*records, *outputs) if node.backward}
    edges = [
        EdgeRecord(edge.tail, edge.head, far=edge.head in backward and edge.tail not in backward)
        for edge in (*_edges(heads, heads), *ends)
    ]
    alt = f"the traced graph of {traced.name}: {counted(len(traced.op_nodes), 'operator')}"
    return GraphRecord(alt=alt, downward=True, halves=True, nodes=(*records, *outputs), edges=_distinct(edges))


def read_from(node: fx.Node) -> fx.Node:
    """The node whose tuple a getitem reads, or that a wait waits for; any other node itself."""
    return read_from(node.all_input_nodes[0]) if _is_reading(node) else node


class Input(NamedTuple):
    """What is drawn of an input: a parameter stands with the module that owns it."""

    name: str
    module: str


def inputs_of(traced: TracedGraph, nodes: Iterable[fx.Node]) -> dict[fx.Node, Input]:
    """The inputs of the placeholders among the nodes of a trace, or of its program."""
    modules = {source.module for node in traced.op_nodes if (source := traced.source(node)) is not None}
    running = {module[: match.start()] for module in modules for match in re.finditer(r"\.|$", module)}
    placeholders = (node for node in nodes if node.op == "placeholder")
    return {
        node: Input(found.name, _owner(found.name, running) if found.role in ("parameter", "buffer") else "")
        for node, found in zip(placeholders, traced.inputs, strict=True)
    }


def _owner(name: str, running: Collection[str]) -> str:
    """The innermost of the modules that run which has a parameter of this name."""
    owner = name.rpartition(".")[0]
    return owner if not owner or owner in running else _owner(owner, running)


def _traced_node(traced: TracedGraph, node: fx.Node) -> NodeRecord:
    backward = traced.phase(node) == "backward"
    source = traced.source(node)
    module = source.module if source else ""
    if node.op != "call_function":
        return NodeRecord(node.name, "operand", (str(node.target),), module=module, backward=backward)
    return NodeRecord(node.name, "op", (short_op(op_name(node.target)),), module=module, backward=backward)


def output_records(
    traced: TracedGraph, output: fx.Node, heads: Mapping[fx.Node, fx.Node]
) -> tuple[list[NodeRecord], list[EdgeRecord]]:
    """The outputs of a trace, or of its program; a gradient stands with the module that computed it."""
    returned: Any = output.args[0]
    values = returned if isinstance(returned, (tuple, list)) else (returned,)
    records, edges = [], []
    for found, value in zip(traced.outputs, values, strict=True):
        if value not in heads:
            continue
        head = heads[value]
        source = head.meta.get("source") if found.of is not None else None
        module, phase = source.module if source is not None else "", head.meta.get("phase", "forward")
        key = f"output:{found.name}"
        records.append(NodeRecord(key, "output", (found.name,), module=module, backward=phase == "backward"))
        edges.append(EdgeRecord(head.name, key))
    return records, edges
