"""A page of its own, for a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.show.card import card_html
from spmd_lab.show.markup import Html, escaped, tag
from spmd_lab.show.sentences import mesh_text
from spmd_lab.show.theme import FRAME, GROUND

if TYPE_CHECKING:
    from spmd_lab.show.value_records import ExpansionRecord, ReportRecord

__all__ = ["expansion_page"]

_BODY = f"{FRAME};font-family:system-ui,sans-serif;margin:16px auto;padding:0 16px"


def expansion_page(record: ExpansionRecord, report: ReportRecord | None = None) -> str:
    """A self-contained page of an expansion, with its proof where there is one."""
    name = escaped(f"{record.name} on {mesh_text(record.axes)}")
    title, heading = tag("title", name), tag("h1", name, style="font-size:20px")
    metas = Html(
        '<meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        '<meta name="viewport" content="width=device-width">'
    )
    head = tag("head", metas, title, tag("style", Html(GROUND)))
    body = tag("body", tag("main", heading, card_html(record, report)), style=_BODY)
    return f'<!doctype html>\n<html lang="en">{head}{body}</html>\n'
