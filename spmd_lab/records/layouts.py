"""Layouts, meshes and lines of code as records."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from spmd_lab.notation import dtype_name, format_dim, format_local_sizes, format_pending
from spmd_lab.show.part_records import AxisRecord, LayoutRecord, LineRecord, Span

if TYPE_CHECKING:
    from spmd_lab.layout import Layout
    from spmd_lab.mesh import Mesh
    from spmd_lab.trace.values import Source

__all__ = ["axes_spans", "axis_span", "layout_record", "line_record", "mesh_axes"]


def mesh_axes(mesh: Mesh) -> tuple[AxisRecord, ...]:
    """The axes of a mesh."""
    return tuple(AxisRecord(name, size) for name, size in zip(mesh.axes, mesh.shape, strict=True))


def axis_span(mesh: Mesh, axis: str) -> Span:
    """The name of an axis, and which it is."""
    return Span(axis, mesh.axes.index(axis) if axis in mesh.axes else -1)


def axes_spans(mesh: Mesh, axes: tuple[str, ...]) -> tuple[Span, ...]:
    """The names of some axes."""
    return tuple(axis_span(mesh, axis) for axis in axes)


def line_record(source: Source | None) -> LineRecord | None:
    """A line of the user's code."""
    return None if source is None else LineRecord(source.place, source.code, source.module)


@lru_cache(maxsize=16384)
def layout_record(layout: Layout) -> LayoutRecord:
    """A layout, cut where axes are named."""
    spans = [Span(f"{dtype_name(layout.dtype)}[")]
    for dim, size in enumerate(layout.global_shape):
        spans.extend([Span(", ")] if dim else [])
        spans.extend(_dim_spans(layout, format_dim(size, layout.splits(dim))))
    spans.append(Span("]"))
    if layout.pending:
        spans.extend(_pending_spans(layout))
    return LayoutRecord(tuple(spans), format_local_sizes(layout))


def _dim_spans(layout: Layout, text: str) -> list[Span]:
    """In the notation of a dim, a name behind a slash is an axis."""
    pieces = re.split(r"(?<=/)([A-Za-z_]\w*)", text)
    return [axis_span(layout.mesh, piece) if odd % 2 else Span(piece) for odd, piece in enumerate(pieces) if piece]


def _pending_spans(layout: Layout) -> list[Span]:
    pieces = re.split(r"(?<=[:,] )([A-Za-z_]\w*)", format_pending(layout.pending))
    spans = [axis_span(layout.mesh, piece) if odd % 2 else Span(piece) for odd, piece in enumerate(pieces)]
    return [Span(span.text, span.axis, pending=True) for span in spans]
