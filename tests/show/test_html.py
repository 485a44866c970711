"""HTML says what the text says, in plain elements that live in a notebook that nobody trusts."""

from __future__ import annotations

import re
import subprocess
import time
from dataclasses import replace
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import spmd_lab as sl
from spmd_lab.records import html, html_page, text
from spmd_lab.records.expansions import expansion_record
from spmd_lab.records.reports import report_record
from spmd_lab.show.card import Card
from spmd_lab.show.sentences import report_evidence, tally_text
from spmd_lab.show.units import bytes_text
from tests.conftest import chromium
from tests.show.html_reader import read
from tests.show.models import Unlike, expanded, large

if TYPE_CHECKING:
    from pathlib import Path

    from spmd_lab.prove import VerifyReport

PLAIN = {"b", "details", "div", "img", "pre", "span", "summary", "table", "tbody", "td", "th", "thead", "tr"}


@pytest.fixture(scope="module")
def values(expansion: sl.Expansion, step: sl.Step, report: VerifyReport) -> dict[str, object]:
    return {
        "traced": expansion.traced,
        "expansion": expansion,
        "step": step,
        "resolve": expansion.steps[-1],
        "collectives": expansion.collectives,
        "no collectives": expansion.collectives[:0],
        "groups": expansion.collectives.by("module"),
        "program": expansion.program,
        "report": report,
    }


KINDS = ("traced", "expansion", "step", "resolve", "collectives", "no collectives", "groups", "program", "report")


@pytest.mark.parametrize("kind", KINDS)
def test_a_notebook_shows_plain_elements(values: dict[str, object], kind: str) -> None:
    seen = read(values[kind]._repr_html_())
    assert seen.tags <= PLAIN
    assert seen.attributes <= {"alt", "open", "src", "style", "tabindex"}
    assert "url(" not in values[kind]._repr_html_()
    for alt, svg in seen.images:
        assert alt
        assert ElementTree.fromstring(svg).tag.endswith("svg")


def _words(told: str) -> list[str]:
    return re.findall(r"[\w.:/{}\[\]]+", told)


@pytest.mark.parametrize("kind", ["step", "resolve", "collectives", "no collectives", "groups"])
def test_html_says_every_word_of_the_text(values: dict[str, object], kind: str) -> None:
    shown = re.sub(r"[●■▼◆]", " ", read(html(values[kind])).text)
    shown_words = set(_words(shown))
    missing = [word for word in _words(text(values[kind])) if word not in shown_words and word not in shown]
    assert missing == []


@pytest.mark.parametrize("kind", ["traced", "program"])
def test_html_and_text_print_the_same_statements(values: dict[str, object], kind: str) -> None:
    told, shown = text(values[kind]), read(html(values[kind])).text
    statements = re.findall(r"^    (\w+ = .*?)(?:  #|$)", told, flags=re.MULTILINE)
    assert len(statements) == 60
    assert [statement for statement in statements if statement.rstrip() not in shown] == []
    gap = re.search(r"# \.\.\. \d+ more statements \.\.\.", told)
    assert gap is not None
    assert gap.group() in shown
    assert told.splitlines()[0].removeprefix("# ") in shown


def test_an_expansion_says_its_numbers_in_both(expansion: sl.Expansion) -> None:
    told, shown = text(expansion), read(html(expansion)).text
    counts = told.splitlines()[0].partition(": ")[2]
    assert counts in shown
    assert told.splitlines()[-1] in shown
    for line in expansion.collectives.by("source"):
        assert line in told
        assert line in shown


def test_the_numbers_are_those_of_the_expansion(expansion: sl.Expansion) -> None:
    counts = text(expansion).splitlines()[0]
    resolves = [step for step in expansion.steps if step.op == "resolve"]
    operators = [step for step in expansion.steps if step.op != "resolve"]
    resolving = sum(len(step.collectives) for step in resolves)
    forward = sum(len(step.collectives) for step in operators if step.phase == "forward")
    backward = sum(len(step.collectives) for step in operators if step.phase == "backward")
    assert counts.startswith(f"Stack on dp=2 x tp=2: {len(operators)} operators, {len(expansion.collectives)} coll")
    assert f"{forward + backward} in steps ({forward} forward, {backward} backward)" in counts
    assert f"{resolving} to resolve {len(resolves)} pending outputs" in counts
    assert forward + backward + resolving == len(expansion.collectives)


def test_outputs_that_stay_pending_are_counted() -> None:
    def sums(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sum(), x.relu()

    x, mesh = torch.ones(4), sl.Mesh(dp=2)
    kept, resolved = (
        sl.spmd_expand(sums, x, mesh=mesh, batch="dp", pending=pending) for pending in ("keep", "resolve")
    )
    for told in (text(kept), read(html(kept)).text):
        assert "1 output left pending, 0 B sent per rank" in told
    assert "left pending" not in text(resolved)


def test_columns_stay_apart_without_styles(expansion: sl.Expansion) -> None:
    bare = re.sub(r"<[^>]+>", "", html(expansion))
    assert "module gives collectives in its steps" in bare


def test_a_collective_shows_itself_as_its_table_does(expansion: sl.Expansion) -> None:
    first = expansion.collectives[0]
    assert repr(first) == repr(expansion.collectives[:1])
    assert first._repr_html_() == expansion.collectives[:1]._repr_html_()


def test_every_step_that_communicates_is_shown(expansion: sl.Expansion) -> None:
    shown = read(html(expansion)).text
    loud = [step.name.removeprefix("resolve:") for step in expansion.steps if step.collectives]
    assert [name for name in loud if name not in shown] == []
    quiet = [step.name for step in expansion.steps if not step.collectives]
    assert [name for name in quiet if name not in shown] == []


def test_what_is_sent_by_axis_and_kind_is_all_that_is_sent(expansion: sl.Expansion) -> None:
    record = expansion_record(expansion, modules=False)
    assert sum(total.sent_bytes for total in record.totals) == expansion.collectives.total("sent_bytes_per_rank")
    assert [total.sent_bytes for total in record.totals] == sorted((t.sent_bytes for t in record.totals), reverse=True)
    shown = re.sub(r"[●■▼◆] ", "", read(html(expansion)).text)
    for total in record.totals:
        assert f"{tally_text(total)}{bytes_text(total.sent_bytes)}" in shown
        assert f"{tally_text(total)} {bytes_text(total.sent_bytes)}" in text(expansion)


def test_a_card_repeats_the_proof(expansion: sl.Expansion, report: VerifyReport) -> None:
    card = expansion.card(report)
    first = text(expansion).splitlines()[0]
    assert repr(card).splitlines()[0] == f"{first}, every node equal on 4 ranks"
    shown = read(card._repr_html_())
    assert shown.tags <= PLAIN
    for said in (first.partition(": ")[2], "✓ every node equal on 4 ranks", report_evidence(report_record(report))):
        assert said in shown.text


def test_a_card_repeats_what_is_wrong(expansion: sl.Expansion, report: VerifyReport) -> None:
    card = Card(expansion_record(expansion), replace(report_record(report), ok=False))
    assert "NOT equal on 4 ranks" in repr(card).splitlines()[0]
    assert "✗ NOT equal on 4 ranks" in read(card._repr_html_()).text


def test_modules_that_run_the_same_program_share_a_row() -> None:
    shown = read(html(expanded(6))).text
    title, count = re.search(r"(blocks\.\d – blocks\.\d) × (\d)", shown).groups()
    first, last = (int(number) for number in re.findall(r"\d", title))
    assert last - first + 1 == int(count) >= 4


class Wrapped(nn.Module):
    """Layers that run nothing themselves, in a list that runs nothing itself, within a module that wraps one."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.ModuleDict({"first": nn.Linear(16, 16), "second": nn.Linear(16, 16)}) for _ in range(5)]
        self.body = nn.ModuleDict({"layers": nn.ModuleList(layers)})
        self.head = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.body["layers"]:
            x = layer["second"](layer["first"](x).relu())
        return self.head(x)


def test_layers_that_run_nothing_themselves_share_a_row_too() -> None:
    (row, *_) = (module for module in expansion_record(expanded(module=Wrapped())).modules if len(module.paths) > 2)
    assert row.paths[0].rpartition(".")[0] == "body.layers"
    assert {path.rpartition(".")[2] for path in (child.paths[0] for child in row.children)} <= {"first", "second"}


# --- nothing that is shown can act ----------------------------------------------------------------


class Evil(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.add_module("<script>alert(1)</script>", nn.Linear(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return next(self.children())(x)  # "<img src=x onerror='alert(1)'>"


Evil.__name__ = "<b onclick=alert(1)>Evil"


def test_names_and_lines_are_escaped() -> None:
    expansion = expanded(module=Evil())
    report = expansion.program.verify()
    shown_values = [expansion, expansion.traced, expansion.program, expansion.collectives, report, *expansion.steps]
    pages = [value._repr_html_() for value in shown_values]
    pages.append(html_page(expansion, report).partition("</h1>")[2].removesuffix("</main></body></html>\n"))
    for page in pages:
        seen = read(page)
        assert seen.tags <= PLAIN
        assert not {"onclick", "onerror"} & seen.attributes
        for _, svg in seen.images:
            assert {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(svg).iter()} <= SVG
    assert "<script>alert(1)</script>" in read(pages[0]).text
    assert "onerror=" in read(pages[0]).text


SVG = {"svg", "title", "g", "path", "rect", "circle", "text"}


# --- size, speed, pages ---------------------------------------------------------------------------


def test_a_large_expansion_of_unlike_modules_stays_light() -> None:
    expansion = expanded(module=Unlike(40))
    assert len(expansion.steps) > 1200
    page = expansion._repr_html_()
    assert len(page) < 350_000
    shown = read(page).text
    loud = [step.name.removeprefix("resolve:") for step in expansion.steps if step.collectives]
    assert len(loud) > 250
    assert [name for name in loud if name not in shown] == []
    assert re.search(r"\.\.\. \d+ more", shown)


def test_a_large_expansion_stays_light() -> None:
    expansion = large()
    assert len(expansion.steps) > 1800
    seconds = []
    for _ in range(3):
        start = time.process_time()
        page = expansion._repr_html_()
        seconds.append(time.process_time() - start)
    assert len(page) < 400_000
    assert min(seconds) < 0.6
    assert len(repr(expansion)) < 4_000
    assert len(repr(expansion.traced)) < 20_000
    assert len(expansion.traced.draw().svg) < 400_000


def test_a_page_stands_alone(expansion: sl.Expansion, report: VerifyReport, tmp_path: Path) -> None:
    path = expansion.to_html(tmp_path / "page.html", report)
    page = path.read_text(encoding="utf-8")
    assert page == html_page(expansion, report)
    assert page.startswith("<!doctype html>")
    assert not re.search(r"<script|<link|https?://(?!www\.w3\.org)", page)
    assert "every node equal on 4 ranks" in read(page.partition("\n")[2]).text
    assert [found.name for found in tmp_path.iterdir()] == ["page.html"]


def test_a_page_needs_a_folder(expansion: sl.Expansion, tmp_path: Path) -> None:
    with pytest.raises(sl.SpmdLabError, match=r"no folder .*nowhere[\s\S]*path=[\s\S]*try: make it first"):
        expansion.to_html(tmp_path / "nowhere" / "page.html")
    with pytest.raises(sl.SpmdLabError, match="is a folder"):
        expansion.to_html(tmp_path)


def test_a_page_that_fails_leaves_the_old_one(
    expansion: sl.Expansion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    monkeypatch.setattr("os.replace", _fails)
    with pytest.raises(OSError, match="disk"):
        expansion.to_html(path)
    assert [(found.name, found.read_text()) for found in tmp_path.iterdir()] == [("page.html", "old")]


def _fails(*_: object) -> None:
    raise OSError("disk")


@pytest.mark.browser
def test_a_browser_shows_the_page(expansion: sl.Expansion, report: VerifyReport, tmp_path: Path) -> None:
    path = expansion.to_html(tmp_path / "page.html", report)
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    command = [chromium(), *quiet, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert text(expansion).splitlines()[0].partition(": ")[2] in read(done.stdout).text
