"""The film of an expansion: the same frames in a notebook and in a file, moved by sliders, filters and names."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spmd_lab as sl
from spmd_lab.records import film_of
from spmd_lab.show.film_html import frame_title
from spmd_lab.show.film_page import film_page
from spmd_lab.show.markup import image
from spmd_lab.show.strip_svg import strip_left
from tests.conftest import chromium
from tests.show.models import large

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Page

    from spmd_lab.jupyter.film import Film


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


@pytest.fixture(scope="module")
def expansion() -> sl.Expansion:
    torch.manual_seed(0)
    return sl.spmd_expand(
        Mlp(),
        torch.randn(5, 6),
        mesh=sl.Mesh(dp=2, tp=2),
        loss=lambda out: out.square().mean(),
        batch="dp",
        params=sl.colwise("up", axis="tp") | sl.rowwise("down", axis="tp"),
    )


@pytest.fixture
def film(expansion: sl.Expansion) -> Film:
    return expansion.film()


def words(html: str) -> str:
    return unescape(re.sub(r"<[^>]+>", "", html))


def test_there_is_one_frame_for_each_step(expansion: sl.Expansion, film: Film) -> None:
    record = film.record
    assert [frame.step.name for frame in record.frames] == [step.name for step in expansion.steps]
    assert record.frames[-1].sent_bytes == expansion.collectives.total("sent_bytes_per_rank")
    assert repr(film) == f"<Film: Mlp, {len(expansion.steps)} steps>"


def test_a_frame_shows_the_step_in_every_stage(expansion: sl.Expansion, film: Film) -> None:
    program = [node for node in expansion.program.graph_module.graph.nodes if node.op == "call_function"]
    for frame, step in zip(film.record.frames, expansion.steps, strict=True):
        assert frame.is_traced == (step.op != "resolve")
        if frame.is_traced:
            assert frame.traced[frame.at].line.statement.startswith(f"{step.name} = ")
        spliced = [node.line.statement.partition(" = ")[0] for node in frame.spliced]
        assert spliced == [node.name for node in program if node.meta["spmd_step"] == step.name]
        assert len(frame.local) >= len([node for node in step.local_graph.graph.nodes if node.op == "call_function"])
        read = dict.fromkeys((operand.name, str(operand.have)) for operand in step.operands)
        assert [(each.title, each.layout.text) for each in frame.holdings[: len(read)]] == list(read)


def test_a_way_to_where_operands_are_needed_is_drawn(expansion: sl.Expansion, film: Film) -> None:
    for place, step in enumerate(expansion.steps):
        film.step.value = place + 1
        moves = bool(step.collectives) or any(operand.redistribution for operand in step.operands)
        subgraph = film.frame.value.partition("<b>subgraph</b>")[2]
        assert (image(step.draw().svg, step.draw().alt) in subgraph) == moves


def test_the_slider_moves_through_the_steps(expansion: sl.Expansion, film: Film) -> None:
    for place, step in enumerate(expansion.steps):
        film.step.value = place + 1
        assert film.index == place
        shown = words(film.frame.value)
        assert f"step {place + 1} of {len(expansion.steps)}: {step.name}," in shown
        for operand in step.operands:
            assert str(operand.need) in shown


def test_the_rank_slider_shows_what_that_rank_holds(expansion: sl.Expansion, film: Film) -> None:
    film.name.value = next(step.name for step in expansion.steps if step.operands[0].have.uneven_axes)
    layout = expansion.steps[film.index or 0].operands[0].have
    for rank in range(4):
        film.rank.value = rank
        assert f"rank {rank} holds" in words(film.frame.value)
        assert str(list(layout.local_shape(rank))) in words(film.frame.value)


def test_numbers_are_those_that_ranks_hold(expansion: sl.Expansion) -> None:
    film = expansion.film(values=True)
    film.name.value = next(step.name for step in expansion.steps if any(each.name == "x" for each in step.operands))
    film.rank.value = 3
    x = expansion.traced.values[[each.name for each in expansion.traced.inputs].index("x")]
    mine = x[expansion.layout("x").slices(3)].flatten()
    assert f"{float(mine[0]):.4g}, {float(mine[1]):.4g}" in words(film.frame.value)


def test_every_node_unfolds_into_its_card(expansion: sl.Expansion, film: Film) -> None:
    """Of the trace: what its step has and gives. Of what a rank runs: what it is for, and what is sent."""
    sent = 0
    for place, step in enumerate(expansion.steps):
        film.step.value = place + 1
        frame = film.record.frames[place]
        cards = [words(each) for each in re.findall(r"<details>(.*?)</details>", film.frame.value, re.DOTALL)]
        around = [node for at, node in enumerate(frame.traced) if at != frame.at and node.frame >= 0]
        traced = around if step.op != "resolve" else []
        assert len(cards) == len(traced) + len(frame.local) + len(frame.spliced)
        for node, card in zip(traced, cards, strict=False):
            shown = expansion.steps[node.frame]
            assert card.startswith(f"{node.line.statement}step {node.frame + 1} of ")
            assert all(str(operand.need) in card for operand in shown.operands)
            assert all(f"-> {layout} ▸ " in card for layout in shown.outputs)
        for nodes in (frame.local, frame.spliced):
            assert [node.collective.sent_bytes for node in nodes if node.collective is not None] == [
                each.sent_bytes_per_rank for each in step.collectives
            ]
        for node, card in zip((*frame.local, *frame.spliced), cards[len(traced) :], strict=True):
            assert card.startswith(node.line.statement)
            assert all(each in card for each in node.reads)
            assert "sent per rank" in card if node.collective else node.purpose in card
        sent += sum(node.collective.sent_bytes for node in frame.spliced if node.collective is not None)
    assert sent == expansion.collectives.total("sent_bytes_per_rank")


def test_what_a_node_holds_is_what_the_program_says(expansion: sl.Expansion, film: Film) -> None:
    held = {node.value: node.layout for frame in film.record.frames for node in frame.spliced if node.layout}
    named = {node.meta.get("spmd_value") for node in expansion.program.graph_module.graph.nodes} - {None}
    assert named - {each.name for each in expansion.traced.inputs} <= set(held)
    assert all(layout.text == str(expansion.layout(name)) for name, layout in held.items() if ":" not in name)
    for frame in film.record.frames:
        assert [node.value for node in frame.local if node.value][-1:] == [
            node.value for node in frame.spliced if node.value
        ][-1:] or not frame.spliced


def test_what_is_gathered_comes_before_what_reads_it() -> None:
    expansion = sl.spmd_expand(
        Mlp(), torch.ones(4, 6), mesh=sl.Mesh(dp=2), batch="dp", loss=torch.sum, stored=sl.fsdp("dp"), regather=True
    )
    film = expansion.film()
    for place, step in enumerate(expansion.steps):
        if step.op == "gather":
            reader = next(each for each in expansion.steps[place:] if each.op != "gather")
            frame = film.record.frames[place]
            assert not frame.is_traced
            assert frame.traced[frame.at].line.statement.startswith(f"{reader.name} = ")
            film.step.value = place + 1
            shown = words(film.frame.value)
            assert f"→ {step.name}▶" in shown.replace("\n", "") or f"→ {step.name}{reader.name}" in shown
            assert "all_gather(dp)" in shown


def test_numbers_can_be_asked_for_later(expansion: sl.Expansion, film: Film) -> None:
    assert "numbers" not in words(film.frame.value)
    film.numbers.value = True
    assert film.record == expansion.film(values=True).record
    assert "numbers" in words(film.frame.value)
    film.numbers.value = False
    assert "numbers" not in words(film.frame.value)


def test_uneven_shards_are_told_of_the_last_of_many_ranks_too() -> None:
    film = sl.spmd_expand(torch.relu, torch.ones(90, 2), mesh=sl.Mesh(dp=100), batch="dp").film()
    for rank, shape in ((0, "[1, 2]"), (89, "[1, 2]"), (90, "[0, 2]"), (99, "[0, 2]")):
        film.rank.value = rank
        assert shape in words(film.frame.value)


def test_a_page_without_a_kernel_shows_the_film_as_it_stood(film: Film) -> None:
    film.step.value = 4
    kept = film._repr_mimebundle_()
    assert kept["text/plain"] == repr(film)
    assert kept["application/vnd.jupyter.widget-view+json"]["model_id"] == film.widget.model_id
    assert film.frame.value in kept["text/html"]
    assert "expansion.film()" in words(kept["text/html"])


def test_filters_choose_among_the_steps(expansion: sl.Expansion, film: Film) -> None:
    film.kind.value = "any"
    assert film.step.max == len([step for step in expansion.steps if step.collectives])
    assert expansion.steps[film.index or 0].collectives
    film.axis.value = "tp"
    over_tp = [place for place, step in enumerate(expansion.steps) if any("tp" in c.axes for c in step.collectives)]
    seen = []
    for place in range(1, film.step.max + 1):
        film.step.value = place
        seen.append(film.index)
    assert seen == over_tp
    assert f"{len(over_tp)} of {len(over_tp)} that pass the filters" in film.found.value
    film.module.value, film.kind.value, film.axis.value = "down", "", ""
    film.step.value = 1
    assert expansion.steps[film.index or 0].source.module == "down"  # type: ignore[union-attr]
    film.axis.value, film.kind.value = "dp", "any"
    if film.index is None:
        assert film.frame.value == "no step fits these filters"


def test_a_name_leads_to_its_step_through_any_filter(expansion: sl.Expansion, film: Film) -> None:
    film.kind.value = "any"
    quiet = next(step.name for step in expansion.steps if not step.collectives)
    film.name.value = quiet
    assert expansion.steps[film.index or 0].name == quiet
    assert film.kind.value == ""


def test_a_name_that_no_step_has_is_told_of(expansion: sl.Expansion, film: Film) -> None:
    known = expansion.steps[(film.index or 0)].name
    film.name.value = f"{known}x"
    assert f"no step is called {known}x: did you mean" in film.found.value
    film.name.value = known
    assert not film.found.value


def test_the_title_says_an_operator_once(film: Film) -> None:
    titles = {frame.step.name: frame_title(film.record, index) for index, frame in enumerate(film.record.frames)}
    assert ": mm, backward" in titles["mm"]
    assert ": mm_1, backward" in titles["mm_1"]
    resolved = next(name for name in titles if name.startswith("resolve:"))
    assert f": {resolved}, resolve, " in titles[resolved]


def test_names_from_the_user_are_escaped() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("<script>alert(1)</script>", nn.Linear(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return next(iter(self.children()))(x)

    film = sl.spmd_expand(Odd(), torch.ones(4, 4), mesh=sl.Mesh(dp=2), batch="dp").film()
    for place in range(1, film.step.max + 1):
        film.step.value = place
        assert "<script>alert" not in film.frame.value
    page = film_page(film.record)
    assert "<script>alert" not in page


def test_the_page_is_the_same_each_time_and_small(expansion: sl.Expansion, tmp_path: Path) -> None:
    film = expansion.film()
    path = film.to_html(tmp_path / "film.html")
    assert path.read_text() == film_page(film_of(expansion))
    assert path.stat().st_size < 100_000
    with pytest.raises(sl.SpmdLabError, match="there is no folder"):
        film.to_html(tmp_path / "nowhere" / "film.html")


def test_the_page_of_a_large_film_stays_light() -> None:
    record = film_of(large())
    assert len(record.frames) > 1800
    assert len(film_page(record)) < 1_000_000


# --- in a browser -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def opened(expansion: sl.Expansion, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The exported film, opened from the disk, without a network."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = expansion.film(values=True).to_html(tmp_path_factory.mktemp("film") / "film.html")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        found = browser.new_context(offline=True).new_page()
        found.goto(path.as_uri())
        yield found
        browser.close()


@pytest.fixture
def page(opened: Page) -> Iterator[Page]:
    """The film at its beginning; it makes no error."""
    errors: list[object] = []
    opened.on("pageerror", lambda error: errors.append(error))
    opened.reload()
    opened.wait_for_selector("#frame b")
    yield opened
    assert errors == []


def title(page: Page) -> str:
    return page.inner_text("#frame b >> nth=0")


def slide(page: Page, control: str, value: int) -> None:
    page.locator(control).evaluate(
        "(input, value) => { input.value = value; input.dispatchEvent(new Event('input', {bubbles: true})); }", value
    )


@pytest.mark.browser
def test_the_exported_film_plays_without_a_kernel(page: Page, expansion: sl.Expansion) -> None:
    names = [step.name for step in expansion.steps]
    total = len(names)
    drawn = next(place for place, step in enumerate(expansion.steps) if step.collectives)
    slide(page, "#step", drawn)
    assert page.get_by_alt_text(f"dispatch subgraph of {names[drawn]}, ").evaluate(
        "async (picture) => { await picture.decode(); return picture.naturalWidth; }"
    )
    slide(page, "#step", 0)
    assert title(page).startswith(f"step 1 of {total}: {names[0]},")
    slide(page, "#step", 4)
    assert title(page).startswith(f"step 5 of {total}: {names[4]},")
    page.click("#next")
    page.keyboard.press("ArrowRight")
    assert title(page).startswith(f"step 7 of {total}: {names[6]},")
    page.keyboard.press("End")
    assert title(page).startswith(f"step {total} of {total}: {names[-1]},")
    page.keyboard.press("Home")
    slide(page, "#rank", 3)
    assert "rank 3 holds" in page.inner_text("[data-holdings]")
    layout = expansion.steps[0].operands[0].have
    assert str(list(layout.local_shape(3))) in page.inner_text("[data-holdings]")
    page.select_option("#kind", "any")
    communicating = [step.name for step in expansion.steps if step.collectives]
    assert page.inner_text("#count").endswith(f"of {len(communicating)}")
    page.fill("#name", names[3])
    page.keyboard.press("Enter")
    page.locator("#name").dispatch_event("change")
    assert title(page).startswith(f"step 4 of {total}: {names[3]},")
    page.click("h1")
    page.keyboard.press(" ")
    page.wait_for_function("document.querySelector('#frame b').textContent.startsWith('step 6 ')", timeout=10_000)
    page.click("#play")
    assert page.inner_text("#play") == "▶ play"


@pytest.mark.browser
def test_a_node_that_is_clicked_shows_its_card(page: Page, expansion: sl.Expansion, film: Film) -> None:
    """In the page as in the notebook; and from the card it is one click to the step."""
    page.select_option("#kind", "any")
    frame = next(frame for frame in film.record.frames if frame.kinds)
    assert title(page).startswith(f"step {film.record.frames.index(frame) + 1} of ")
    stages = page.locator("#frame > div > div")
    local = stages.filter(has_text="what a rank runs for it").locator("details")
    for node in frame.local:
        card = local.filter(has_text=node.line.statement).first
        card.locator("summary").focus()
        page.keyboard.press(" ")
        card.locator("div").first.wait_for()
        assert ("sent per rank" in card.inner_text()) == (node.collective is not None)
    assert page.inner_text("#play") == "▶ play"

    before = next(node for node in frame.traced if node.frame >= 0)
    card = stages.filter(has_text="the single-device program").locator("details").first
    card.locator("summary").click()
    card.get_by_role("columnheader", name="needs").wait_for()
    step = expansion.steps[before.frame]
    assert all(str(operand.need) in card.inner_text() for operand in step.operands)
    card.get_by_role("button", name="go to this step").click()
    assert title(page).startswith(f"step {before.frame + 1} of {len(expansion.steps)}: {step.name},")
    assert page.input_value("#kind") == ""


@pytest.mark.browser
def test_the_strip_leads_to_its_steps(page: Page, film: Film) -> None:
    box = page.locator("#strip").bounding_box()
    assert box is not None
    for index in (len(film.record.frames) - 1, 7):
        left = strip_left(film.record.overview, index)
        page.mouse.click(box["x"] + box["width"] * left / 100, box["y"] + 20)
        assert title(page).startswith(f"step {index + 1} of ")
