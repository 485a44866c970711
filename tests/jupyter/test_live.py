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
    one = ["f32[8, 16]", "f32[8/dp, 16]", "f32[8, 16/dp]", "f32[8/tp, 16]", "f32[8, 16/tp]"]
    two = ["f32[8/dp/tp, 16]", "f32[8/dp, 16/tp]", "f32[8/tp, 16/dp]", "f32[8, 16/dp/tp]"]
    assert live.inputs["x"].options == (*one, *two)
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
    assert "before this choice" in read(live.change.value).text
    assert live.source in read(live.call.value).text
    assert "8/tp" not in live.source


def layers(count: int, **params: str) -> LiveLayouts:
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(count)))
    expansion = sl.spmd_expand(model, torch.ones(4, 4), mesh=sl.Mesh(tp=2), params=params)
    return expansion.live()


def test_blocks_that_lie_alike_share_a_choice_whatever_others_do() -> None:
    live = layers(6, **{"1.weight": "o/tp i", "4.weight": "o/tp i"})
    assert set(live.params) == {"{0,2,3,5}.weight", "{1,4}.weight", "*.bias"}
    live.params["{1,4}.weight"].value = "f32[4, 4/tp]"
    for layer in range(6):
        expected = "f32[4, 4/tp]" if layer in (1, 4) else "f32[4, 4]"
        assert str(live.expansion.layout(f"{layer}.weight")) == expected
    made = eval(live.source, {"sl": sl, "expansion": live.before})
    assert made.input_layouts == live.expansion.input_layouts


def test_names_that_differ_in_a_number_alone_are_alike() -> None:
    model = torch.nn.ModuleDict({f"expert{place}": torch.nn.Linear(4, 4) for place in range(3)})
    expansion = sl.spmd_expand(lambda x: sum(each(x) for each in model.values()), torch.ones(4, 4), mesh=sl.Mesh(tp=2))
    live = expansion.live()
    assert set(live.params) == {"model.*.weight", "model.*.bias"}
    live.params["model.*.weight"].value = "f32[4/tp, 4]"
    assert str(live.expansion.layout("model.expert2.weight")) == "f32[4/tp, 4]"


def test_a_large_model_has_few_choices() -> None:
    assert len(expanded(20).live().params) == len(expanded(2).live().params)


def test_many_axes_are_offered_one_at_a_time() -> None:
    mesh = sl.Mesh(pp=2, dp=2, tp=2)
    live = sl.spmd_expand(lambda x: x.relu(), torch.ones(8, 8, 8), mesh=mesh, inputs={"x": "a/pp/dp b/tp c"}).live()
    (choice,) = live.inputs.values()
    assert len(choice.options) == 1 + 9 + 1
    assert choice.options[-1] == choice.value == "f32[8/pp/dp, 8/tp, 8]"


def test_what_else_was_asked_for_is_asked_for_again() -> None:
    options = {"pending": "keep", "random": "local", "stored": sl.fsdp("dp"), "regather": False}
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 4))
    expansion = sl.spmd_expand(model, torch.ones(8, 4), mesh=sl.Mesh(dp=2), loss=torch.sum, batch="dp", **options)
    assert expansion.options == options
    live = expansion.live()
    live.inputs["input"].value = "f32[8, 4]"
    live.inputs["input"].value = "f32[8/dp, 4]"
    assert live.expansion.options == options
    assert [step.name for step in live.expansion.steps] == [step.name for step in expansion.steps]
    assert live.expansion.output_layouts == expansion.output_layouts
    made = eval(live.source, {"sl": sl, "expansion": expansion})
    assert made.input_layouts == live.expansion.input_layouts == expansion.input_layouts
    assert sl.expand(expansion.traced, expansion.mesh, pending="resolve", outputs={}).options == {}


def test_a_page_without_a_kernel_shows_the_last_choice(live: LiveLayouts) -> None:
    kept = live._repr_mimebundle_()
    assert kept["text/plain"] == repr(live)
    assert kept["application/vnd.jupyter.widget-view+json"]["model_id"] == live.widget.model_id
    for part in (live.change, live.call, live.card):
        assert part.value in kept["text/html"]
