"""The nodes that a rank runs for one step, each with what it is for."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from torch import fx

from spmd_lab.collectives import WAIT, is_collective
from spmd_lab.records.collectives import collective_record
from spmd_lab.records.layouts import layout_record
from spmd_lab.show.film_records import LocalNodeRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spmd_lab.expand.values import Collective, Step
    from spmd_lab.layout import Layout
    from spmd_lab.show.part_records import CodeLine

__all__ = ["local_nodes", "returned_values"]


def local_nodes(
    step: Step, nodes: Sequence[fx.Node], lines: Sequence[CodeLine], values: Mapping[fx.Node, tuple[str, Layout]]
) -> tuple[LocalNodeRecord, ...]:
    """The nodes of a step, in its subgraph or in the program.

    Parameters
    ----------
    step : Step
        The step.
    nodes : sequence of torch.fx.Node
        Its nodes, in order.
    lines : sequence of CodeLine
        As statements.
    values : mapping
        Those that hold a value of the trace, with its name and its layout.
    """
    sending = (node for node in nodes if is_collective(node))
    sent = dict(zip(sending, step.collectives, strict=False))  # long steps are told in part
    return tuple(
        _record(step, node, line, sent.get(node), values.get(node)) for node, line in zip(nodes, lines, strict=True)
    )


def _record(
    step: Step, node: fx.Node, line: CodeLine, collective: Collective | None, value: tuple[str, Layout] | None
) -> LocalNodeRecord:
    return LocalNodeRecord(
        line=line,
        purpose=_purpose(step, node),
        reads=tuple(each.name for each in node.all_input_nodes),
        collective=None if collective is None else collective_record(collective),
        value="" if value is None else value[0],
        layout=None if value is None else layout_record(value[1]),
    )


def _purpose(step: Step, node: fx.Node) -> str:
    """Whether a node moves an operand, waits, or computes."""
    if node.target is WAIT:
        return f"waits for {node.all_input_nodes[0].name}"
    if node.target is operator.getitem:
        return f"one of the outputs of {node.all_input_nodes[0].name}"
    position = node.meta.get("spmd_operand")
    if position is not None:
        operand = step.operands[position]
        return f"brings {operand.name} from {operand.have} to {operand.need}"
    return "resolves the output" if step.op == "resolve" else f"computes {step.op} of what this rank holds"


def returned_values(step: Step, names: Mapping[int, str], graph: fx.Graph) -> dict[fx.Node, tuple[str, Layout]]:
    """What the nodes of a subgraph hold that it returns; ``names`` are those of the parts, where it has several."""
    returned = next(node for node in reversed(graph.nodes) if node.op == "output").args[0]
    flat = returned if isinstance(returned, (tuple, list)) else [returned]
    return {
        node: (names.get(position, step.name), layout)
        for position, (node, layout) in enumerate(zip(flat, step.outputs, strict=False))
        if isinstance(node, fx.Node) and layout is not None
    }
