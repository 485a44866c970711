"""A step as HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.show.fragments import code_html, collectives_html, layout_html, line_html, moves_html
from spmd_lab.show.graph_svg import graph_svg
from spmd_lab.show.markup import Html, bold, code, details, escaped, image, joined, muted, table, tag
from spmd_lab.show.sentences import draws_sentence, own_collectives, short_op

if TYPE_CHECKING:
    from spmd_lab.show.graph_records import GraphRecord
    from spmd_lab.show.part_records import OperandRecord
    from spmd_lab.show.value_records import StepRecord

__all__ = ["step_body", "step_details", "step_picture"]


def step_details(record: StepRecord) -> Html:
    """One line, which unfolds into the step."""
    summary = [
        bold(record.name, "font-family:monospace"),
        muted(f" {short_op(record.op)}, {record.phase} -> "),
        joined((layout_html(layout) for layout in record.outputs if layout is not None), ", "),
        escaped("  "),
        collectives_html(record.collectives),
    ]
    return details(joined(summary), step_body(record))


def step_body(record: StepRecord) -> Html:
    """The user's line, the operands, what comes out, and the graph."""
    parts = [tag("div", line_html(record.line))] if record.line else []
    if record.fallback:
        parts.append(tag("div", bold("fallback: "), escaped(record.fallback)))
    if record.draw_bytes:
        parts.append(tag("div", escaped(draws_sentence(record))))
    if record.operands:
        heading = ("operand", "has", "needs", "how")
        parts.append(table(heading, (_operand_cells(operand) for operand in record.operands)))
    within = own_collectives(record)
    if within:
        parts.append(tag("div", escaped("within: "), collectives_html(within)))
    parts.extend(tag("div", escaped("-> "), layout_html(layout, local=True)) for layout in record.outputs)
    if record.picture is not None:
        parts.append(tag("div", step_picture(record.picture)))
    if record.graph is not None:
        arguments = ", ".join(argument.name for argument in record.graph.arguments)
        results = ", ".join(result.name for result in record.graph.results)
        signature = joined([escaped("as rank 0 runs it "), code(muted(f"({arguments}) -> ({results})"))])
        parts.append(details(signature, code_html(record.graph)))
    return joined(parts)


def step_picture(record: GraphRecord) -> Html:
    """The dispatch subgraph of a step."""
    return image(graph_svg(record), record.alt)


def _operand_cells(operand: OperandRecord) -> tuple[Html, ...]:
    return (
        code(escaped(operand.name)),
        layout_html(operand.have),
        layout_html(operand.need, local=True),
        moves_html(operand.moves),
    )
