"""Graphs as records of pictures: that of a traced program, and the dispatch subgraph of a step."""

from __future__ import annotations

import operator
from collections import Counter
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
    from spmd_lab.trace.values import Phase, TracedGraph

__all__ = ["NODES_DRAWN", "step_graph_record", "traced_graph_record"]

NODES_DRAWN = 300
"""A traced graph with more nodes is drawn by modules."""


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
    kind = _KINDS.get(short_op(op_name(node.target)), short_op(op_name(node.target)))
    found = [each for each in step.collectives if each.kind == kind and axis in each.axes]
    exact = [each for each in found if each.operand == name] or found
    size = (bytes_text(exact[0].payload_bytes),) if exact else ()
    position = exact[0].have.mesh.axes.index(axis) if exact else -1
    return NodeRecord(node.name, kind, (f"{kind}({axis})", *size), position)


_KINDS = {
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
    """Every node; or, where there are many, every module."""
    nodes = list(traced.graph_module.graph.nodes)
    if len(nodes) <= NODES_DRAWN:
        return _by_node(traced, nodes)
    return _by_module(traced, [node for node in nodes if node.op == "call_function" and not _is_reading(node)])


def _by_node(traced: TracedGraph, nodes: list[fx.Node]) -> GraphRecord:
    titles = {found.node: found.name for found in traced.inputs}
    heads = {node: _read_from(node) for node in nodes if node.op != "output"}
    records = [_traced_node(traced, node, titles) for node, head in heads.items() if head is node]
    outputs, ends = _traced_outputs(traced, nodes[-1], heads)
    phases = {head.name: traced.phase(head) for head in heads.values()}
    edges = [
        EdgeRecord(edge.tail, edge.head, far=phases[edge.tail] == "forward" and phases[edge.head] == "backward")
        for edge in _edges(heads, heads)
    ]
    alt = f"the traced graph of {traced.name}: {counted(len(traced.op_nodes), 'operator')}"
    return GraphRecord(alt=alt, downward=True, nodes=(*records, *outputs), edges=_distinct([*edges, *ends]))


def _read_from(node: fx.Node) -> fx.Node:
    """The node whose tuple a getitem reads; any other node itself."""
    return _read_from(node.all_input_nodes[0]) if _is_reading(node) else node


def _traced_node(traced: TracedGraph, node: fx.Node, titles: dict[str, str]) -> NodeRecord:
    if node.op != "call_function":
        return NodeRecord(node.name, "operand", (titles.get(node.name, node.name), global_comment(node)))
    shape = "op" if traced.phase(node) == "forward" else "backward op"
    return NodeRecord(node.name, shape, (short_op(op_name(node.target)),))


def _traced_outputs(
    traced: TracedGraph, output: fx.Node, heads: dict[fx.Node, fx.Node]
) -> tuple[list[NodeRecord], list[EdgeRecord]]:
    returned: Any = output.args[0]
    values = returned if isinstance(returned, (tuple, list)) else (returned,)
    pairs = [(found.name, heads[value]) for found, value in zip(traced.outputs, values, strict=True) if value in heads]
    records = [NodeRecord(f"output:{name}", "output", (name,)) for name, _ in pairs]
    return records, [EdgeRecord(head.name, f"output:{name}") for name, head in pairs]


def _by_module(traced: TracedGraph, ops: list[fx.Node]) -> GraphRecord:
    """One node per module, as deep into the modules as the picture allows; edges are those of the forward."""
    paths = {node: _path(node) for node in ops}
    for depth in range(max(len(path) for path in paths.values()), -1, -1):
        groups = {node: ".".join(path[:depth]) for node, path in paths.items()}
        if len(set(groups.values())) <= NODES_DRAWN:
            break
    counts = Counter((group, traced.phase(node)) for node, group in groups.items())
    records = tuple(
        NodeRecord(f"module:{path}", "module", (path or f"{traced.name} itself", _operators(counts, path)))
        for path in dict.fromkeys(groups.values())
    )
    edges = [
        EdgeRecord(f"module:{groups[before]}", f"module:{groups[node]}")
        for node in ops
        if traced.phase(node) == "forward"
        for before in map(_read_from, node.all_input_nodes)
        if before in groups and groups[before] != groups[node]
    ]
    alt = f"the traced graph of {traced.name} by modules: {counted(len(traced.op_nodes), 'operator')}"
    return GraphRecord(alt=alt, downward=True, nodes=records, edges=_distinct(edges))


def _operators(counts: Counter[tuple[str, Phase]], path: str) -> str:
    forward, backward = counts[path, "forward"], counts[path, "backward"]
    return f"{counted(forward, 'operator')}, {backward} backward" if backward else counted(forward, "operator")


def _path(node: fx.Node) -> tuple[str, ...]:
    source = node.meta.get("source")
    return tuple(source.module.split(".")) if source is not None and source.module else ()
