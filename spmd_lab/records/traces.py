"""A traced graph as a record."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from spmd_lab.notation import dtype_name
from spmd_lab.records.code import code_record, global_comment
from spmd_lab.show.value_records import TraceRecord

if TYPE_CHECKING:
    from spmd_lab.trace.values import TracedGraph, TracedOutput

__all__ = ["trace_record"]


def trace_record(traced: TracedGraph) -> TraceRecord:
    """The program of one device as code, with its numbers."""
    phases = Counter(traced.phase(node) for node in traced.op_nodes)
    return TraceRecord(
        name=traced.name,
        forward_operators=phases["forward"],
        backward_operators=phases["backward"],
        arguments_by_role=tuple(Counter(found.role for found in traced.inputs).items()),
        results_by_role=tuple(Counter(found.role for found in traced.outputs).items()),
        notes=traced.notes,
        code=code_record(
            traced.graph_module.graph,
            traced.name,
            global_comment,
            arguments=[(found.name, found.role) for found in traced.inputs],
            results=[(found.name, found.role, _output_comment(found)) for found in traced.outputs],
        ),
    )


def _output_comment(output: TracedOutput) -> str:
    if output.global_shape is None or output.dtype is None:
        return ""
    return f"{dtype_name(output.dtype)}[{', '.join(str(size) for size in output.global_shape)}]"
