"""A program as a record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.collectives import is_collective
from spmd_lab.records.code import code_record, statement
from spmd_lab.records.layouts import layout_record, mesh_axes
from spmd_lab.show.value_records import ProgramRecord

if TYPE_CHECKING:
    from torch import fx

    from spmd_lab.expand.expansion import Expansion
    from spmd_lab.expand.values import Step
    from spmd_lab.layout import Layout
    from spmd_lab.rebuild import Program

__all__ = ["program_record"]


def program_record(program: Program) -> ProgramRecord:
    """What rank 0 runs, as code, with the layout of every value that the traced program has too."""
    expansion, graph = program.expansion, program.graph_module.graph
    comments = {
        node: _layout_comment(layout) for node, layout in zip(_placeholders(graph), program.input_layouts, strict=True)
    }

    def comment(node: fx.Node) -> str:
        return comments[node] if node in comments else _value_comment(expansion, node)

    return ProgramRecord(
        name=expansion.name,
        axes=mesh_axes(expansion.mesh),
        nodes=sum(node.op == "call_function" for node in graph.nodes),
        collectives=sum(is_collective(node) for node in graph.nodes),
        code=code_record(
            graph,
            expansion.name,
            comment,
            arguments=[(found.name, found.role) for found in expansion.traced.inputs],
            results=[
                (found.name, found.role, _layout_comment(layout))
                for found, layout in zip(expansion.traced.outputs, program.output_layouts, strict=True)
            ],
            mesh=expansion.mesh,
            does=_Expanded(expansion, graph),
        ),
    )


class _Expanded:
    """Says of a node of a program which traced one it helps to compute, and how operands get to where it needs them."""

    def __init__(self, expansion: Expansion, graph: fx.Graph) -> None:
        steps = (node.meta["spmd_step"] for node in graph.nodes if "spmd_step" in node.meta and _helps(node))
        traced = {node.name: statement(node) for node in expansion.traced.op_nodes}
        self.told = {name: _told(expansion.step(name), traced.get(name, name)) for name in dict.fromkeys(steps)}

    def __call__(self, node: fx.Node) -> tuple[str, ...]:
        return self.told.get(str(node.meta.get("spmd_step", "")), ())


def _helps(node: fx.Node) -> bool:
    """Whether a node is none of the traced ones."""
    return node.op in ("call_function", "get_attr") and not node.meta.get("spmd_value")


def _told(step: Step, done: str) -> tuple[str, ...]:
    """What a step does, with its operands that move."""
    moved = (each for each in step.operands if each.redistribution is not None)
    ways = (f"  {each.name}: {each.have} -> {each.need}" for each in moved)
    return (done, *dict.fromkeys(ways))


def _placeholders(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _value_comment(expansion: Expansion, node: fx.Node) -> str:
    """The layout of the traced value that a node carries; a node on the way to one has none."""
    name = node.meta.get("spmd_value", "")
    return _layout_comment(expansion.layouts.get(name)) if name else ""


def _layout_comment(layout: Layout | None) -> str:
    if layout is None:
        return ""
    record = layout_record(layout)
    return f"{record.text} ▸ {record.local}"
