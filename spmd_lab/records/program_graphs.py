"""The program of a rank as the record of a picture: what the trace has too, and the collectives between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.collectives import axis_of, is_collective, kind_of
from spmd_lab.records.code import op_name, resolves
from spmd_lab.records.graphs import inputs_of, output_records, read_from
from spmd_lab.records.layouts import layout_record
from spmd_lab.show.graph_records import EdgeRecord, GraphRecord, NodeRecord
from spmd_lab.show.sentences import short_op
from spmd_lab.show.units import bytes_text, counted

if TYPE_CHECKING:
    from torch import fx

    from spmd_lab.layout import Layout
    from spmd_lab.rebuild import Program
    from spmd_lab.records.graphs import Input

__all__ = ["program_graph_record", "traced_names"]


def program_graph_record(program: Program) -> GraphRecord:
    """Every node that rank 0 runs; waits and readings of tuples join what they wait for or read."""
    nodes = list(program.graph_module.graph.nodes)
    traced = program.expansion.traced
    inputs = inputs_of(traced, nodes)
    layouts = dict(zip(inputs, program.input_layouts, strict=True))
    heads = {node: read_from(node) for node in nodes if node.op != "output"}
    drawn = [node for node, head in heads.items() if head is node]
    records = [
        _operand(node, inputs[node], layouts[node]) if node in inputs else _node(program, node) for node in drawn
    ]
    outputs, ends = output_records(traced, nodes[-1], heads)
    backward = {node.key for node in (*records, *outputs) if node.backward}
    pairs = [
        (heads[before].name, heads[node].name)
        for node in heads
        for before in node.all_input_nodes
        if heads[before] is not heads[node]
    ]
    pairs += [(end.tail, end.head) for end in ends]
    edges = (EdgeRecord(tail, head, head in backward and tail not in backward) for tail, head in pairs)
    return GraphRecord(
        alt=f"the program of rank 0 of {program.expansion.name}: {counted(len(records), 'node')}",
        downward=True,
        nodes=(*records, *outputs),
        edges=tuple(dict.fromkeys(edges)),
        halves=True,
    )


def traced_names(program: Program) -> dict[str, str]:
    """Which node of the program is drawn for each node of its trace: of a step, the operator on local tensors."""
    steps = {step.name: step.op for step in program.expansion.steps}
    own: dict[str, list[fx.Node]] = {}
    for node in program.graph_module.graph.nodes:
        if read_from(node) is node and "spmd_operand" not in node.meta and not is_collective(node):
            own.setdefault(node.meta.get("spmd_step", node.name), []).append(node)
    found = {
        name: next((node for node in nodes if str(node.target) == steps.get(name)), nodes[-1]).name
        for name, nodes in own.items()
    }
    outputs = (f"output:{output.name}" for output in program.expansion.traced.outputs)
    return found | {name: name for name in outputs}


def _operand(node: fx.Node, found: Input, layout: Layout) -> NodeRecord:
    return NodeRecord(node.name, "operand", (found.name, layout_record(layout).text), module=found.module)


def _node(program: Program, node: fx.Node) -> NodeRecord:
    source = node.meta.get("source")
    backward = node.meta.get("phase") == "backward"
    module = source.module if source is not None and (backward or not resolves(node)) else ""
    if node.op == "get_attr":
        return NodeRecord(node.name, "operand", (str(node.target),), module=module, backward=backward)
    kind = kind_of(node)
    if kind is not None:
        axis = axis_of(node)
        axes = program.expansion.mesh.axes
        found = node.meta.get("spmd_collective")
        size = (bytes_text(found.payload_bytes),) if found is not None else ()
        place = axes.index(axis) if axis in axes else -1
        return NodeRecord(node.name, kind, (f"{kind}({axis})", *size), place, module, backward)
    shape = "local" if "spmd_operand" in node.meta else "op"
    return NodeRecord(node.name, shape, (short_op(op_name(node.target)),), module=module, backward=backward)
