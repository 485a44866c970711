"""Names that try to act, to break out, or not to be seen: in every rendering they are text, and the text is theirs."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pygraphviz
import pytest
import torch
from torch import nn
from torch.nn import functional

import spmd_lab as sl
from spmd_lab.records import html_page
from spmd_lab.records.json_schema import SCHEMA
from spmd_lab.show.profile_view import BarRecord, NodeRecord, ProfileRecord, RankTimeRecord, profile_html
from tests.conftest import chromium
from tests.show.html_reader import read
from tests.show.test_html import PLAIN, SVG

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from spmd_lab.prove import VerifyReport

NAMES = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "]]>--><svg onload=alert(1)>",
    "\" onclick='alert(1)' & <b>",
    '"]}',
    "{a|b}<c>",
    "back\\slash\\n",
    "trailing\\",
    "new\nline",
    "bell\x07",
    "turned\u202e around",
    "ünïcödé 漢字 🎉",
    "graph",
    "node",
    "subgraph",
    "${x}`t`%s",
    "a_name_that_is_longer_than_any_that_somebody_would_ever_want_to_read_in_a_picture_of_a_graph",
)


class Hostile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in NAMES:
            self.add_module(name, nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for module in self.children():
            x = module(x)  # "<img src=x onerror='alert(1)'>"
        return x


Hostile.__name__ = "<b onclick=alert(1)>Hostile"


@pytest.fixture(scope="module")
def expansion() -> sl.Expansion:
    torch.manual_seed(0)
    targets = torch.randn(4, 4)
    return sl.spmd_expand(
        Hostile(),
        torch.randn(4, 4),
        mesh=sl.Mesh(dp=2),
        batch="dp",
        loss=lambda out: functional.mse_loss(out, targets),
    )


@pytest.fixture(scope="module")
def report(expansion: sl.Expansion) -> VerifyReport:
    return expansion.program.verify()


def seen_of(name: str) -> str:
    """A name as a page shows it."""
    return name.replace("\x07", "\\x07").replace("\u202e", "\\u202e")


def inert(page: str, more: Iterable[str] = ()) -> str:
    """What a page says, which has neither elements nor attributes that act."""
    found = read(page)
    assert found.tags <= PLAIN | set(more)
    assert not [name for name in found.attributes if name.startswith("on")]
    for alt, svg in found.images:
        picture = ElementTree.fromstring(svg)
        assert {each.tag.rpartition("}")[2] for each in picture.iter()} <= SVG
        assert not [name for each in picture.iter() for name in each.attrib if name.startswith("on") or "href" in name]
        assert alt
    return found.text


def test_names_are_shown_in_notebooks(expansion: sl.Expansion, report: VerifyReport) -> None:
    pages = [expansion.card(report)._repr_html_(), html_page(expansion, report).partition("</h1>")[2]]
    pages[1] = pages[1].removesuffix("</main></body></html>\n")
    for page in pages:
        text = inert(page)
        assert [name for name in NAMES if seen_of(name) not in text] == []
    values = [expansion, expansion.traced, expansion.program, expansion.collectives, expansion.steps, report]
    for value in (*values, *expansion.steps, expansion.collectives.by("module")):
        inert(value._repr_html_())


def test_names_are_shown_in_pictures(expansion: sl.Expansion) -> None:
    drawn = [
        expansion.traced.draw(),
        expansion.traced.draw(beside=expansion.program),
        expansion.program.draw(depth=1),
        expansion.program.draw(only="collectives"),
        expansion.program.draw(around=expansion.steps[-1].name),
        *(step.draw() for step in expansion.steps[-3:]),
    ]
    for picture in drawn:
        root = ElementTree.fromstring(picture.svg)
        assert {each.tag.rpartition("}")[2] for each in root.iter()} <= SVG
        assert root[0].text == seen_of(picture.alt)
        inert(picture._repr_html_())
    told = "".join(each.text or "" for each in ElementTree.fromstring(drawn[0].svg).iter())
    assert [name for name in NAMES if len(name) < 60 and seen_of(name) not in told] == []


def test_names_are_shown_in_films(expansion: sl.Expansion, tmp_path: Path) -> None:
    film = expansion.film()
    for frame in (0, len(expansion.steps) // 2, len(expansion.steps) - 1):
        film.step.value = frame + 1
        inert(film.frame.value)
    page = film.to_html(tmp_path / "film.html").read_text(encoding="utf-8")
    assert page.count("<script") == 2
    packed = re.search(r'id="film">([A-Za-z0-9+/=]*)</script>', page)
    assert packed is not None
    played = json.loads(gzip.decompress(b64decode(packed[1])))
    frames = [re.sub(r"<img data-picture[^>]*>", "", each["html"]) for each in played["frames"]]
    told = "".join(inert(each) for each in (*frames, *(each["card"] for each in played["frames"])))
    assert [name for name in NAMES if seen_of(name) not in told] == []
    chrome = Chrome()
    chrome.feed(page)
    assert chrome.tags <= {*PLAIN, *FILM}
    assert not [name for name in chrome.attributes if name.startswith("on")]
    assert set(chrome.values) >= {frame["name"] for frame in played["frames"]}
    assert [frame["name"] for frame in played["frames"]] == [seen_of(step.name) for step in expansion.steps]


FILM = {"html", "head", "header", "meta", "title", "style", "script", "body", "h1", "p", "main"} | {
    "button",
    "label",
    "input",
    "select",
    "option",
    "datalist",
}


class Chrome(HTMLParser):
    """What stands around the frames of a film."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.values: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.values += [value for name, value in attrs if name == "value"]


def test_names_are_shown_in_live_layouts(expansion: sl.Expansion) -> None:
    live = expansion.live()
    for part in (live.change, live.card, live.call):
        inert(part.value)
    name = next(iter(live.params))
    live.params[name].index = len(live.params[name].options) - 1
    for part in (live.change, live.card, live.call):
        inert(part.value)


def test_names_are_shown_in_profiles() -> None:
    first, second, third = NAMES[:3]
    record = ProfileRecord(
        name=first,
        mesh="dp=2",
        found=second,
        repeats=1,
        ranks=[RankTimeRecord(0, 2.0, 1.0, 0.0, 1.0, 0.0, 0.0)],
        nodes=[NodeRecord(first, second, third, times=[1.0], waited=[0.0], line=first)],
        bars=[BarRecord(0, 0.0, 1.0, 0.0, -1, False)],
        straggler=third,
    )
    text = inert(profile_html(record))
    assert [name for name in (first, second, third) if name not in text] == []


def test_names_are_written_for_others(expansion: sl.Expansion, tmp_path: Path) -> None:
    for value in (expansion.traced, expansion.program, *expansion.steps[:2]):
        graph = value.to_networkx()
        read_back = pygraphviz.AGraph(value.to_dot(tmp_path / "a.dot").read_text(encoding="utf-8"))
        assert set(read_back.nodes()) == set(graph)
        assert {tuple(edge) for edge in read_back.edges()} == set(graph.edges)
        for name, facts in graph.nodes(data=True):
            written = read_back.get_node(name).attr
            for key, fact in facts.items():
                assert (written[key] or "").replace("\\n", "\n").replace("\\\\", "\\") == str(fact) or "\\" in str(fact)
    told = json.loads(expansion.to_json(tmp_path / "a.json").read_text(encoding="utf-8"))
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(told, SCHEMA)
    modules = {step["source"]["module"] for step in told["steps"] if step["source"]}
    assert set(NAMES) <= modules


def test_two_renderings_are_equal_and_have_no_ids(expansion: sl.Expansion, report: VerifyReport) -> None:
    again = sl.expand(expansion.traced, expansion.mesh, batch="dp")
    cards = [each.card(report)._repr_html_() for each in (expansion, again)]
    assert cards[0] == cards[1]
    shown = [*cards, expansion.program.draw().svg, expansion.film().frame.value, expansion.live().card.value]
    for each in shown:
        assert not re.search(r"\sid=|0x[0-9a-f]{6,}", each)


@pytest.mark.browser
def test_a_browser_runs_nothing_of_a_name(expansion: sl.Expansion, report: VerifyReport, tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    (tmp_path / "card.html").write_text(expansion.card(report)._repr_html_(), encoding="utf-8")
    (tmp_path / "bad.html").write_text("<script>alert(1)</script>", encoding="utf-8")
    expansion.to_html(tmp_path / "page.html", report)
    expansion.film().to_html(tmp_path / "film.html")
    shown: dict[str, list[str]] = {}
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for name in ("card", "page", "film", "bad"):
            page, said = browser.new_page(), shown.setdefault(name, [])
            page.on("dialog", lambda dialog, said=said: (said.append(dialog.message), dialog.dismiss()))
            page.on("pageerror", lambda error, said=said: said.append(str(error)))
            page.goto((tmp_path / f"{name}.html").as_uri())
            page.wait_for_selector("body" if name == "bad" else "details")
            page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
            page.wait_for_function("!document.querySelector('[data-card]:empty')")
            broken = "[...document.images].filter((each) => each.complete && !each.naturalWidth).length"
            assert page.evaluate(broken) == 0
        browser.close()
    assert shown == {"card": [], "page": [], "film": [], "bad": ["1"]}
