"""A film as one file that plays without a kernel and without a network."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from spmd_lab.show.escaping import escape_text, seen_text
from spmd_lab.show.film_html import frame_html, step_card
from spmd_lab.show.fragments import layout_html
from spmd_lab.show.graph_svg import graph_svg
from spmd_lab.show.markup import Html, escaped, image
from spmd_lab.show.sentences import expansion_sentence, mesh_text
from spmd_lab.show.strip_svg import strip_alt, strip_left, strip_svg
from spmd_lab.show.theme import GROUND

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spmd_lab.show.film_records import FilmRecord
    from spmd_lab.show.graph_records import GraphRecord
    from spmd_lab.show.part_records import LayoutRecord

__all__ = ["film_page", "module_paths"]

_HOLDINGS = Html("<div data-holdings></div>")
"""What the script fills, as it does the cards of other steps and the pictures: as plain text, they compress well."""


def film_page(film: FilmRecord) -> str:
    """The page: frames compressed, controls with labels, keys, and the script that plays it."""
    overview = film.overview
    title = f"{overview.name} on {mesh_text(overview.axes)}: the film"
    packed = b64encode(gzip.compress(json.dumps(_data(film)).encode(), mtime=0)).decode()
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="color-scheme" content="light dark"><meta name="viewport" content="width=device-width">',
            f"<title>{escape_text(title)}</title><style>{GROUND}{_static('film.css')}</style></head><body>",
            f"<header><h1>{escape_text(title)}</h1><p>{escape_text(expansion_sentence(overview))}</p>",
            _strip(film),
            f"{_controls(film)}</header>",
            '<p id="nothing" hidden>no step fits these filters</p><main id="frame" aria-live="polite"></main>',
            f'<script type="application/octet-stream" id="film">{packed}</script>',
            f"<script>{_static('film.js')}</script></body></html>\n",
        ]
    )


def _static(name: str) -> str:
    return files("spmd_lab.show").joinpath("static", name).read_text(encoding="utf-8")


def _data(film: FilmRecord) -> dict[str, Any]:
    """What the script reads; a layout stands there once, with its shapes on every rank."""
    held = dict.fromkeys((each.layout, each.shapes) for frame in film.frames for each in frame.holdings)
    places = {key: place for place, key in enumerate(held)}
    return {
        "ranks": film.ranks,
        "layouts": [{"html": layout_html(layout), "shapes": list(map(escape_text, shapes))} for layout, shapes in held],
        "frames": [_frame(film, index, places) for index in range(len(film.frames))],
    }


def _card_slot(index: int) -> Html:
    return Html(f'<div data-card="{index}"></div>')


def _picture_slot(record: GraphRecord) -> Html:
    return Html(f'<img data-picture alt="{escape_text(record.alt)}">')


def _frame(film: FilmRecord, index: int, places: Mapping[tuple[LayoutRecord, tuple[str, ...]], int]) -> dict[str, Any]:
    frame = film.frames[index]
    return {
        "html": frame_html(film, index, lambda _: _HOLDINGS, _card_slot, _picture_slot),
        "card": step_card(film, index),
        "picture": "" if frame.step.picture is None else graph_svg(frame.step.picture),
        "name": seen_text(frame.step.name),
        "module": seen_text(frame.module),
        "axes": frame.axes,
        "kinds": frame.kinds,
        "left": round(strip_left(film.overview, index), 2),
        "holdings": [
            {
                "title": escape_text(each.title),
                "layout": places[each.layout, each.shapes],
                "values": [escape_text(value) for value in each.values],
            }
            for each in frame.holdings
        ],
    }


def _strip(film: FilmRecord) -> str:
    if not film.overview.marks:
        return ""
    picture = image(strip_svg(film.overview), strip_alt(film.overview))
    return f'<div id="strip">{picture}<div id="mark"></div></div>'


def _controls(film: FilmRecord) -> str:
    modules = {path: path for path in module_paths(film)}
    axes = {axis: axis for frame in film.frames for axis in frame.axes}
    kinds = {kind: kind for frame in film.frames for kind in frame.kinds}
    names = "".join(f'<option value="{escape_text(frame.step.name)}">' for frame in film.frames)
    last = max(len(film.frames) - 1, 0)
    return (
        '<div id="controls" role="group" aria-label="the film">'
        '<button id="back">◀ back</button><button id="play">▶ play</button><button id="next">next ▶</button>'
        f'<label>step <input type="range" id="step" min="0" max="{last}" value="0"></label><span id="count"></span>'
        f'<label>rank <input type="range" id="rank" min="0" max="{film.ranks - 1}" value="0"></label>'
        '<span id="rank-name"></span>'
        f"{_select('module', 'every module', modules)}{_select('axis', 'every axis', axes)}"
        f"{_select('kind', 'every step', {'any': 'that communicates', **kinds})}"
        f'<label>go to <input id="name" list="names"></label><datalist id="names">{names}</datalist></div>'
    )


def module_paths(film: FilmRecord) -> list[str]:
    """Every module that a step belongs to, and those that contain it."""
    return sorted({path for frame in film.frames for path in _paths(frame.module)})


def _paths(module: str) -> list[str]:
    parts = module.split(".") if module else []
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def _select(name: str, everything: str, choices: Mapping[str, str]) -> str:
    options = "".join(
        f'<option value="{escape_text(value)}">{escaped(text)}</option>' for value, text in choices.items()
    )
    return f'<label>{name} <select id="{name}"><option value="">{everything}</option>{options}</select></label>'
