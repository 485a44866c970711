"""A tensor as SVG: one cell for each part that ranks hold, nested where it has more than two dims."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from spmd_lab.show.svg import document, element, number, path_of, text_element
from spmd_lab.show.theme import GREY, axis_colour

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spmd_lab.show.grid_records import CellRecord, ChangeRecord, GridRecord, PlaceRecord, SegmentRecord

__all__ = ["change_svg", "grid_svg"]

_FONT, _LETTER, _LINE = 11.0, 6.7, 16.0
_ACROSS, _DOWN, _LOW = 260.0, 130.0, 24.0
_GAP, _STRIPE, _SHEET, _MARGIN = 10.0, 9.0, 7.0, 8.0
_BETWEEN = 190.0
_RANKS_A_LINE = 4


class _Scale(NamedTuple):
    """Where the segments of the dims of one direction lie, by their positions, outermost dim first; and how far."""

    spans: dict[tuple[int, ...], tuple[float, float]]
    length: float


class _Drawn(NamedTuple):
    """A piece of a picture."""

    parts: list[str]
    width: float
    height: float


def grid_svg(record: GridRecord) -> str:
    """The picture of a layout."""
    drawn = _grid(record)
    moved = element("g", "".join(drawn.parts), transform=f"translate({number(_MARGIN)},{number(_MARGIN)})")
    return document(drawn.width + 2 * _MARGIN, drawn.height + 2 * _MARGIN, record.alt, [moved], "monospace")


def change_svg(record: ChangeRecord) -> str:
    """The picture of a redistribution: before, what happens, after."""
    before, after = _grid(record.before), _grid(record.after)
    height = max(before.height, after.height)
    middle = before.width + _BETWEEN / 2
    actions = [
        text_element(action, middle, height / 2 - 10 - _LINE * (len(record.actions) - 1 - row), **_centred())
        for row, action in enumerate(record.actions)
    ]
    tip = before.width + _BETWEEN - 16
    line = element("path", d=f"M{number(before.width + 16)},{number(height / 2)} H{number(tip - 8)}", stroke=GREY)
    arrow = element(
        "path",
        d=path_of([(tip, height / 2), (tip - 9, height / 2 - 5), (tip - 9, height / 2 + 5)], closed=True),
        fill=GREY,
    )
    left, right = (
        element("g", "".join(drawn.parts), transform=f"translate({number(x)},{number((height - drawn.height) / 2)})")
        for drawn, x in ((before, 0.0), (after, before.width + _BETWEEN))
    )
    moved = element(
        "g", "".join([left, *actions, line, arrow, right]), transform=f"translate({number(_MARGIN)},{number(_MARGIN)})"
    )
    width = before.width + _BETWEEN + after.width
    return document(width + 2 * _MARGIN, height + 2 * _MARGIN, record.alt, [moved], "monospace")


def _centred() -> dict[str, str | float]:
    return {"text_anchor": "middle", "fill": GREY, "font_size": _FONT}


def _grid(record: GridRecord) -> _Drawn:
    """The title, the cells with their indices at the edges, and what is to be said below."""
    ndim = len(record.dims)
    across_dims, down_dims = list(range(ndim - 1, -1, -2))[::-1], list(range(ndim - 2, -1, -2))[::-1]
    across = _scale([record.dims[dim] for dim in across_dims], _ACROSS, _least_width(record, across_dims))
    tallest = max((len(_label(cell)) for cell in record.cells), default=1)
    down = _scale([record.dims[dim] for dim in down_dims], _DOWN, max(_LOW, _LINE * tallest + 4))
    left = max(len(text) for text in ("dim 0", *_edge_texts(record, down_dims))) * _LETTER + 12
    above = max(0, len(down_dims) - 1)
    top = _LINE * (1 + max(1, len(across_dims)) + above)
    parts = [text_element(record.layout.text, 0, _LINE - 4, fill=GREY, font_size=_FONT + 1, font_weight="bold")]
    parts += _edges(record, across_dims, across, top - above * _LINE, left, horizontal=True)
    parts += _edges(record, down_dims, down, top, left, horizontal=False)
    parts += _sheets(record, left, top, across.length, down.length)
    for cell in record.cells:
        x, width = across.spans[tuple(cell.segments[dim] for dim in across_dims)]
        y, height = down.spans[tuple(cell.segments[dim] for dim in down_dims)]
        parts += _cell(cell, left + x, top + y, width, height)
    below = top + down.length + (_SHEET * _sheet_count(record) if record.pending else 0)
    told = _told(record)
    parts += [
        text_element(text, 0, below + _LINE * (row + 1), fill=fill, font_size=_FONT)
        for row, (text, fill) in enumerate(told)
    ]
    widths = [len(text) * _LETTER for text, _ in told] + [len(record.layout.text) * (_LETTER + 0.6)]
    right = left + across.length + _SHEET * _sheet_count(record)
    return _Drawn(parts, max(right, *widths), below + _LINE * len(told) + 4)


def _least_width(record: GridRecord, dims: Iterable[int]) -> float:
    """A cell has room for its label and its stripes, a column for its indices."""
    label = max((len(line) for cell in record.cells for line in _label(cell)), default=0) * _LETTER
    label += _STRIPE * max((len(cell.places) for cell in record.cells), default=0)
    indices = max((len(segment.text) for dim in dims for segment in record.dims[dim]), default=0) * _LETTER
    return max(label, indices) + 10


def _scale(dims: Sequence[Sequence[SegmentRecord]], room: float, least: float) -> _Scale:
    """Lay segments side by side: those of the innermost dim by their size, blocks of outer dims with gaps."""
    if not dims:
        return _Scale({(): (0.0, least)}, least)
    *outer, inner = dims
    gap = _GAP
    size = max(inner[-1].stop, 1)
    lengths = [max(least, room * (each.stop - each.start) / size) if not each.hidden else least for each in inner]
    starts = [0.0, *itertools.accumulate(lengths)]
    spans: dict[tuple[int, ...], tuple[float, float]] = {
        (position,): (starts[position], lengths[position]) for position in range(len(inner))
    }
    length = starts[-1]
    for segments in reversed(outer):
        gap += _LINE
        step = length + gap
        spans = {
            (block, *positions): (start + block * step, extent)
            for block in range(len(segments))
            for positions, (start, extent) in spans.items()
        }
        length = step * len(segments) - gap
    return _Scale(spans, length)


def _edge_texts(record: GridRecord, dims: Iterable[int]) -> list[str]:
    return [_named(dim, segment) for dim in dims for segment in record.dims[dim]]


def _named(dim: int, segment: SegmentRecord) -> str:
    return f"dim {dim} · {segment.text}"


def _edges(
    record: GridRecord, dims: Sequence[int], scale: _Scale, top: float, left: float, horizontal: bool
) -> list[str]:
    """The indices of every segment beside it, those of outer dims farther out; the dim's name before the first."""
    parts = []
    for depth, dim in enumerate(dims):
        for prefix in sorted({key[:depth] for key in scale.spans}):
            for position, segment in enumerate(record.dims[dim]):
                spans = [span for key, span in scale.spans.items() if key[: depth + 1] == (*prefix, position)]
                if not spans:
                    continue
                is_first = not position and not any(prefix)
                text = _named(dim, segment) if is_first and not horizontal else segment.text
                first, last = min(start for start, _ in spans), max(start + length for start, length in spans)
                inward = len(dims) - 1 - depth
                if horizontal:
                    y = top - 5 - _LINE * inward
                    parts += [_at_left(f"dim {dim}", left, y)] if is_first else []
                    parts.append(text_element(text, left + (first + last) / 2, y, **_centred()))
                elif inward == 0:
                    parts.append(_at_left(text, left, top + (first + last) / 2 + 4))
                else:
                    parts.append(_at_left(text, left, top + first - 5 - _LINE * (inward - 1)))
    return parts


def _at_left(text: str, left: float, y: float) -> str:
    return text_element(text, left - 6, y, text_anchor="end", fill=GREY, font_size=_FONT)


def _sheet_count(record: GridRecord) -> int:
    return max(2, len(record.pending)) if record.pending else 2


def _sheets(record: GridRecord, x: float, y: float, width: float, height: float) -> list[str]:
    """Behind a tensor that is pending lie the other pieces of it, dashed, in the colours of the axes."""
    if not record.pending:
        return []
    right, bottom = x + width, y + height
    sheets = []
    for row in range(_sheet_count(record)):
        near, far = row * _SHEET, (row + 1) * _SHEET
        corners = [
            (x + far, bottom + near),
            (x + far, bottom + far),
            (right + far, bottom + far),
            (right + far, y + far),
            (right + near, y + far),
        ]
        colour = axis_colour(record.pending[row % len(record.pending)].axis.axis)
        sheets.append(element("path", d=path_of(corners), fill="none", stroke=colour, stroke_dasharray="4 3"))
    return sheets


def _cell(cell: CellRecord, x: float, y: float, width: float, height: float) -> list[str]:
    """A frame, a stripe for each axis that divides the tensor, and the ranks."""
    thick = 2.5 if cell.own else 1.0
    parts = [
        element(
            "rect",
            x=x + 1 + row * _STRIPE,
            y=y + 1,
            width=_STRIPE - 1,
            height=height - 2,
            fill=axis_colour(place.axis.axis),
            fill_opacity=_opacity(place),
        )
        for row, place in enumerate(cell.places)
    ]
    parts += [_hatched(x, y, width, height)] if cell.arrives else []
    parts.append(element("rect", x=x, y=y, width=width, height=height, fill="none", stroke=GREY, stroke_width=thick))
    middle, lines = (x + _STRIPE * len(cell.places) + x + width) / 2, _label(cell)
    first = y + height / 2 + 4 - _LINE * (len(lines) - 1) / 2
    weight = {"font_weight": "bold"} if cell.own else {}
    parts += [text_element(line, middle, first + _LINE * row, **_centred(), **weight) for row, line in enumerate(lines)]
    return parts


def _opacity(place: PlaceRecord) -> str:
    """Deeper for higher indices; the label says which index it is."""
    return f"{0.15 + 0.85 * place.index / max(place.count - 1, 1):.2f}"


def _hatched(x: float, y: float, width: float, height: float, every: float = 8.0) -> str:
    """Slanted lines over a rectangle."""
    lines, shift = [], every - height
    while shift < width:
        start = (x + max(shift, 0.0), y + max(-shift, 0.0))
        end = (x + min(width, height + shift), y + min(height, width - shift))
        lines.append(path_of([start, end]))
        shift += every
    return element("path", d="".join(lines), stroke=GREY, stroke_opacity="0.45", fill="none")


def _label(cell: CellRecord) -> list[str]:
    """Who holds a cell, a few ranks a line."""
    if not cell.ranks:
        return [cell.holders]
    return [
        " ".join(map(str, cell.ranks[start : start + _RANKS_A_LINE]))
        for start in range(0, len(cell.ranks), _RANKS_A_LINE)
    ]


def _told(record: GridRecord) -> list[tuple[str, str]]:
    """The lines below: what numbers and stripes mean, what is pending, and what no cell shows."""
    places = next((cell.places for cell in record.cells if cell.places), ())
    lines = [("numbers: ranks", GREY)] if any(cell.ranks for cell in record.cells) else []
    lines += [
        (
            f"stripe {row + 1}: {place.axis.text}, from 0 (faint) to {place.count - 1} (full)",
            axis_colour(place.axis.axis),
        )
        for row, place in enumerate(places)
    ]
    lines += [(each.text, axis_colour(each.axis.axis)) for each in record.pending]
    return [*lines, *((remark, GREY) for remark in record.remarks)]
