"""The program of a rank as the record of a picture: what the trace has too, and the collectives between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.records.code import collective_axis, is_collective, op_name
from spmd_lab.records.graphs import KINDS, read_from
from spmd_lab.records.layouts import layout_record
from spmd_lab.show.part_records import EdgeRecord, GraphRecord, NodeRecord
from spmd_lab.show.sentences import short_op
from spmd_lab.show.units import bytes_text, counted

if TYPE_CHECKING:
    from torch import fx

    from spmd_lab.rebuild import Program

__all__ = ["program_graph_record"]


def program_graph_record(program: Program) -> GraphRecord:
    """Every node that rank 0 runs; waits and readings of tuples join what they wait for or read."""
    nodes = list(program.graph_module.graph.nodes)
    heads = {node: read_from(node) for node in nodes if node.op != "output"}
    titles = [each.name for each in program.expansion.traced.inputs]
    placeholders = [node for node in nodes if node.op == "placeholder"]
    named = dict(zip(placeholders, zip(titles, program.input_layouts, strict=True), strict=True))
    records = []
    for node, head in heads.items():
        if node is not head:
            continue
        if node in named:
            title, layout = named[node]
            records.append(NodeRecord(node.name, "operand", (title, layout_record(layout).text)))
        else:
            records.append(_node(program, node))
    edges = [
        EdgeRecord(
            heads[before].name, heads[node].name, far=_phase(heads[before]) == "forward" and _phase(node) == "backward"
        )
        for node in heads
        for before in node.all_input_nodes
        if heads[before] is not heads[node]
    ]
    returned = nodes[-1].args[0]
    ends = [
        (f"output:{output.name}", output.name, heads[value].name)
        for output, value in zip(program.expansion.traced.outputs, returned, strict=True)
        if value in heads
    ]
    outputs = [NodeRecord(key, "output", (name,)) for key, name, _ in ends]
    edges += [EdgeRecord(tail, key) for key, _, tail in ends]
    alt = f"the program of rank 0 of {program.expansion.name}: {counted(len(records), 'node')}"
    return GraphRecord(alt=alt, downward=True, nodes=(*records, *outputs), edges=tuple(dict.fromkeys(edges)))


def _phase(node: fx.Node) -> str:
    return str(node.meta.get("phase", "forward"))


def _node(program: Program, node: fx.Node) -> NodeRecord:
    source = node.meta.get("source")
    module = source.module if source is not None else ""
    if node.op == "get_attr":
        return NodeRecord(node.name, "operand", (str(node.target),), module=module)
    if is_collective(node):
        axis = collective_axis(node)
        name = short_op(op_name(node.target))
        kind = KINDS.get(name, name)
        axes = program.expansion.mesh.axes
        found = node.meta.get("spmd_collective")
        size = (bytes_text(found.payload_bytes),) if found is not None else ()
        place = axes.index(axis) if axis in axes else -1
        return NodeRecord(node.name, kind, (f"{kind}({axis})", *size), place, module)
    shape = "op" if _phase(node) == "forward" else "backward op"
    return NodeRecord(node.name, shape, (short_op(op_name(node.target)),), module=module)
