"""Graphs as records of pictures: that of a traced program, and the dispatch subgraph of a step."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from spmd_lab.records.code import collective_axis, global_comment, is_collective, op_name
from spmd_lab.records.layouts import layout_record
from spmd_lab.show.part_records import EdgeRecord, GraphRecord, NodeRecord
from spmd_lab.show.sentences import short_op
from spmd_lab.show.units import bytes_text, counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import fx

    from spmd_lab.expand.values import Step
    from spmd_lab.trace.values import TracedGraph

__all__ = ["KINDS", "read_from", "step_graph_record", "traced_graph_record"]

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
    return node.op == "call_function" and (node.target is operator.getitem or "wait_tensor" in op_name(node.target))


def _is_local_move(node: fx.Node) -> bool:
    """Whether a node belongs to the redistribution of an operand, and is local."""
    return node.op == "call_function" and "spmd_operand" in node.meta and not is_collective(node)


def _step_node(step: Step, merged: dict[fx.Node, fx.Node], node: fx.Node) -> NodeRecord:
    members = [member for member, head in merged.items() if head is node]
    if node.op == "placeholder":
        return _operand_node(step, node, [each for each in merged if each.op == "placeholder"].index(node))
    if node.op == "get_attr":
        return NodeRecord(node.name, "operand", (str(node.target),))
    if is_collective(node):
        return _collective_node(step, node)
    names = [short_op(op_name(member.target)) for member in members if not _is_reading(member)]
    if _is_local_move(node):
        return NodeRecord(node.name, "local", (", ".join(dict.fromkeys(names)),))
    return NodeRecord(node.name, "op", tuple(names))


def _operand_node(step: Step, node: fx.Node, position: int) -> NodeRecord:
    if position >= len(step.operands):
        return NodeRecord(node.name, "operand", (node.name,))
    operand = step.operands[position]
    return NodeRecord(node.name, "operand", (operand.name, layout_record(operand.have).text))


def _collective_node(step: Step, node: fx.Node) -> NodeRecord:
    """The collective that a node carries out, with its axis and bytes."""
    axis = collective_axis(node)
    operand = node.meta.get("spmd_operand")
    name = step.operands[operand].name if isinstance(operand, int) and operand < len(step.operands) else None
    kind = KINDS.get(short_op(op_name(node.target)), short_op(op_name(node.target)))
    found = [each for each in step.collectives if each.kind == kind and axis in each.axes]
    exact = [each for each in found if each.operand == name] or found
    size = (bytes_text(exact[0].payload_bytes),) if exact else ()
    position = exact[0].have.mesh.axes.index(axis) if exact else -1
    return NodeRecord(node.name, kind, (f"{kind}({axis})", *size), position)


KINDS = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "shard_dim_alltoall": "all_to_all",
}


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
    titles = {found.node: found.name for found in traced.inputs}
    heads = {node: read_from(node) for node in nodes if node.op != "output"}
    records = [_traced_node(traced, node, titles) for node, head in heads.items() if head is node]
    outputs, ends = _traced_outputs(traced, nodes[-1], heads)
    phases = {head.name: traced.phase(head) for head in heads.values()}
    edges = [
        EdgeRecord(edge.tail, edge.head, far=phases[edge.tail] == "forward" and phases[edge.head] == "backward")
        for edge in _edges(heads, heads)
    ]
    alt = f"the traced graph of {traced.name}: {counted(len(traced.op_nodes), 'operator')}"
    return GraphRecord(alt=alt, downward=True, nodes=(*records, *outputs), edges=_distinct([*edges, *ends]))


def read_from(node: fx.Node) -> fx.Node:
    """The node whose tuple a getitem reads; any other node itself."""
    return read_from(node.all_input_nodes[0]) if _is_reading(node) else node


def _traced_node(traced: TracedGraph, node: fx.Node, titles: dict[str, str]) -> NodeRecord:
    if node.op != "call_function":
        return NodeRecord(node.name, "operand", (titles.get(node.name, node.name), global_comment(node)))
    shape = "op" if traced.phase(node) == "forward" else "backward op"
    source = traced.source(node)
    return NodeRecord(node.name, shape, (short_op(op_name(node.target)),), module=source.module if source else "")


def _traced_outputs(
    traced: TracedGraph, output: fx.Node, heads: dict[fx.Node, fx.Node]
) -> tuple[list[NodeRecord], list[EdgeRecord]]:
    returned: Any = output.args[0]
    values = returned if isinstance(returned, (tuple, list)) else (returned,)
    pairs = [(found.name, heads[value]) for found, value in zip(traced.outputs, values, strict=True) if value in heads]
    records = [NodeRecord(f"output:{name}", "output", (name,)) for name, _ in pairs]
    return records, [EdgeRecord(head.name, f"output:{name}") for name, head in pairs]
