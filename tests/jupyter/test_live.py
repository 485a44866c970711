"""Layouts chosen in a notebook: the same trace is expanded again, and the call that is shown makes it."""

from __future__ import annotations

import pytest
import torch

import spmd_lab as sl
from spmd_lab.jupyter.live import LiveLayouts
from tests.show.html_reader import read
from tests.show.models import expanded


@pytest.fixture
def live() -> LiveLayouts:
    found = expanded().live()
    assert isinstance(found, LiveLayouts)
    return found


def test_repeated_blocks_share_a_choice(live: LiveLayouts) -> None:
    assert {"blocks.*.up.weight", "blocks.*.norm.bias", "head.weight"} <= set(live.params)
    assert live.params["blocks.*.up.weight"].value == "f32[64/tp, 16]"
    assert live.inputs["x"].options == (
        "f32[8, 16]",
        "f32[8/dp, 16]",
        "f32[8/tp, 16]",
        "f32[8, 16/dp]",
        "f32[8, 16/tp]",
    )
    assert live.change.value == ""


def test_a_choice_expands_the_same_trace_and_says_what_changes(live: LiveLayouts) -> None:
    start = live.expansion
    live.params["blocks.*.up.weight"].value = "f32[64, 16]"
    assert live.before is start
    assert live.expansion.traced is start.traced
    assert str(live.expansion.layout("blocks.1.up.weight")) == "f32[64, 16]"
    told = read(live.change.value).text
    assert f"{len(start.collectives)} -> {len(live.expansion.collectives)} collectives" in told
    assert read(live.card.value).text.startswith("Stack on dp=2 x tp=2")
    assert live.expansion.program.verify().ok


def test_the_call_that_is_shown_makes_the_expansion(live: LiveLayouts) -> None:
    live.params["head.weight"].value = "f32[8/tp, 16]"
    live.inputs["x"].value = "f32[8, 16]"
    assert live.source in read(live.call.value).text
    made = eval(live.source, {"sl": sl, "expansion": live.before})
    assert made.input_layouts == live.expansion.input_layouts
    assert [found.step for found in made.collectives] == [found.step for found in live.expansion.collectives]


def test_the_same_layouts_are_the_same_expansion(live: LiveLayouts) -> None:
    start = live.expansion
    made = eval(live.source, {"sl": sl, "expansion": start})
    assert made.input_layouts == start.input_layouts
    assert made.output_layouts == start.output_layouts


def test_what_cannot_be_expanded_is_said(live: LiveLayouts, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise sl.SpmdLabError("no way", hint="another <layout>")

    monkeypatch.setattr("spmd_lab.jupyter.live.expand", refuses)
    start = live.expansion
    live.inputs["x"].value = "f32[8/tp, 16]"
    assert "no way" in read(live.change.value).text
    assert "another <layout>" in read(live.change.value).text
    assert live.expansion is start


def test_blocks_that_lie_differently_have_choices_of_their_own() -> None:
    expansion = sl.spmd_expand(
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)),
        torch.ones(4, 4),
        mesh=sl.Mesh(tp=2),
        params={"0.weight": "o/tp i"},
    )
    assert {"0.weight", "1.weight", "*.bias"} <= set(expansion.live().params)
