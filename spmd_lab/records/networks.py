"""A graph for networkx: every node with its facts as attributes."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, Any

from torch import fx

from spmd_lab.collectives import is_collective, kind_of
from spmd_lab.expand.values import Step
from spmd_lab.rebuild import Program
from spmd_lab.records.code import collective_axis, global_comment, op_name
from spmd_lab.show.dot_text import dot_text
from spmd_lab.trace.values import TracedGraph

if TYPE_CHECKING:
    from collections.abc import Mapping

    import networkx

    from spmd_lab.drawn import Drawn

__all__ = ["dot_of", "networkx_of"]


def networkx_of(value: Drawn) -> networkx.DiGraph[str]:
    """See `Drawn.to_networkx`."""
    import networkx

    graph, drawn = networkx.DiGraph(), _fx_graph(value)
    layouts = _layouts(value, drawn)
    for node in drawn.nodes:
        graph.add_node(node.name, **_facts(node, layouts.get(node, "")))
        graph.add_edges_from((before.name, node.name) for before in node.all_input_nodes)
    return graph


def dot_of(value: Drawn) -> str:
    """The same graph in the language of Graphviz."""
    graph = networkx_of(value)
    return dot_text({name: facts | _look(facts) for name, facts in graph.nodes(data=True)}, graph.edges)


def _look(facts: Mapping[str, Any]) -> dict[str, str]:
    label = "\n".join(told for told in (facts["op"] or facts["kind"], facts["layout"]) if told)
    return {"label": label, "shape": "hexagon" if facts["kind"] == "collective" else "box"}


def _fx_graph(value: Drawn) -> fx.Graph:
    if isinstance(value, Step):
        return value.local_graph.graph
    assert isinstance(value, (TracedGraph, Program))
    return value.graph_module.graph


def _facts(node: fx.Node, layout: str) -> dict[str, Any]:
    source = node.meta.get("source")
    sent = node.meta.get("spmd_collective")
    name = op_name(node.target) if node.op == "call_function" else ""
    return {
        "kind": "collective" if is_collective(node) else _NODE_KINDS.get(node.op, "operator"),
        "op": kind_of(node) or name,
        "phase": str(node.meta.get("phase", "")),
        "module": source.module if source is not None else "",
        "line": source.place if source is not None else "",
        "step": str(node.meta.get("spmd_step", "")),
        "value": str(node.meta.get("spmd_value", "")),
        "layout": layout,
        "axis": collective_axis(node),
        "payload_bytes": sent.payload_bytes if sent is not None else 0,
    }


_NODE_KINDS = {"placeholder": "input", "get_attr": "constant", "output": "output"}


@singledispatch
def _layouts(value: object, graph: fx.Graph) -> dict[fx.Node, str]:
    """What is known of how the values of the nodes of its graph lie on the mesh."""
    raise TypeError(f"no graph of a {type(value).__name__}")


@_layouts.register
def _traced(value: TracedGraph, graph: fx.Graph) -> dict[fx.Node, str]:
    return {node: global_comment(node) for node in graph.nodes}


@_layouts.register
def _step(value: Step, graph: fx.Graph) -> dict[fx.Node, str]:
    placeholders = graph.find_nodes(op="placeholder")
    return {node: str(operand.have) for node, operand in zip(placeholders, value.operands, strict=False)}


@_layouts.register
def _program(value: Program, graph: fx.Graph) -> dict[fx.Node, str]:
    known = value.expansion.layouts
    placeholders = graph.find_nodes(op="placeholder")
    given = {node: str(layout) for node, layout in zip(placeholders, value.input_layouts, strict=True)}
    held = {node: known.get(node.meta.get("spmd_value", "")) for node in graph.nodes if node not in given}
    return given | {node: str(layout) for node, layout in held.items() if layout is not None}
