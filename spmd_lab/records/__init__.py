"""From values to plain records, and so to text, HTML and pictures: the one place that knows both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.files import write_text
from spmd_lab.prove.peek import peek
from spmd_lab.records.adapter import adapt, adapt_briefly
from spmd_lab.records.as_json import json_of
from spmd_lab.records.drawing import Part, drawing
from spmd_lab.records.expansions import expansion_record
from spmd_lab.records.films import film_record
from spmd_lab.records.grid_changes import change_record
from spmd_lab.records.grids import grid_record
from spmd_lab.records.networks import dot_of, networkx_of
from spmd_lab.records.reports import report_record
from spmd_lab.show.card import Card
from spmd_lab.show.html import html as html_of_record
from spmd_lab.show.page import expansion_page
from spmd_lab.show.picture import picture
from spmd_lab.show.text import text as text_of_record

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from spmd_lab.drawn import Drawn
    from spmd_lab.expand.expansion import Expansion
    from spmd_lab.expand.values import Redistribution
    from spmd_lab.layout import Layout
    from spmd_lab.prove import VerifyReport
    from spmd_lab.rebuild import Program
    from spmd_lab.show.film_records import FilmRecord
    from spmd_lab.show.picture import Picture
    from spmd_lab.show.value_records import ExpansionRecord
    from spmd_lab.shown import Shown

__all__ = [
    "brief_record_of",
    "card",
    "draw",
    "draw_change",
    "draw_layout",
    "film_of",
    "html",
    "html_page",
    "networkx_of",
    "save_dot",
    "save_json",
    "save_page",
    "text",
]


def text(value: Shown, full: bool = False) -> str:
    """A value as text; ``full`` prints the middle of long code too."""
    return text_of_record(adapt_briefly(value), full=full)


def html(value: Shown) -> str:
    """A value as a fragment of HTML, for a notebook."""
    return html_of_record(adapt(value))


def draw_layout(value: Layout) -> Picture:
    """The picture of a tensor on its mesh."""
    return picture(grid_record(value))


def draw(
    value: Drawn,
    depth: int | None = None,
    around: str | None = None,
    hops: int = 1,
    only: str | None = None,
    once: bool = True,
    beside: Program | None = None,
) -> Picture:
    """The picture of a graph, or of a part of it."""
    return picture(drawing(value, Part(depth, around, hops, only, once), beside))


def save_json(expansion: Expansion, path: str | os.PathLike[str]) -> Path:
    """Write an expansion as JSON."""
    return write_text(path, json_of(expansion))


def save_dot(value: Drawn, path: str | os.PathLike[str]) -> Path:
    """Write a graph in the language of Graphviz."""
    return write_text(path, dot_of(value))


def draw_change(change: Redistribution, rank: int) -> Picture:
    """The picture of a redistribution, as one rank sees it."""
    return picture(change_record(change, rank))


def film_of(expansion: Expansion, values: bool = False) -> FilmRecord:
    """A film of an expansion; with ``values``, of a run of every rank."""
    return film_record(expansion, peek(expansion.program) if values else None)


def html_page(expansion: Expansion, report: VerifyReport | None = None) -> str:
    """A self-contained page of an expansion, with the pictures of its steps.

    Parameters
    ----------
    expansion : Expansion
        What to show.
    report : VerifyReport, optional
        Its proof.
    """
    record = expansion_record(expansion, pictures=True)
    return expansion_page(record, None if report is None else report_record(report))


def brief_record_of(expansion: Expansion) -> ExpansionRecord:
    """The numbers of an expansion, without its modules."""
    return expansion_record(expansion, modules=False)


def card(expansion: Expansion, report: VerifyReport) -> Card:
    """An expansion with its proof."""
    return Card(expansion_record(expansion, pictures=True), report_record(report))


def save_page(expansion: Expansion, path: str | os.PathLike[str], report: VerifyReport | None = None) -> Path:
    """Write the page of an expansion to a file, whole or not at all.

    Raises
    ------
    ArgumentError
        If there is no such folder.
    """
    return write_text(path, html_page(expansion, report))
