"""Errors: one family, one form."""

from __future__ import annotations

import inspect

import pytest

from spmd_lab import errors
from spmd_lab.errors import LayoutError, NotationError, SpmdLabError, nearest

CLASSES = [getattr(errors, name) for name in errors.__all__]


def test_every_error_is_exported() -> None:
    defined = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, Exception)]
    assert sorted(CLASSES, key=repr) == sorted(defined, key=repr)


@pytest.mark.parametrize("cls", CLASSES)
def test_each_is_of_the_family_and_says_what_it_is_for(cls: type[SpmdLabError]) -> None:
    assert issubclass(cls, SpmdLabError)
    assert cls.__doc__
    with pytest.raises(SpmdLabError, match="it broke"):
        raise cls("it broke")


def test_a_text_is_a_wrong_layout() -> None:
    assert issubclass(NotationError, LayoutError)


def test_everything_that_is_known_is_said_in_order() -> None:
    error = SpmdLabError(
        "mm does not fit",
        hint="shard the other way",
        layouts={"x": "f32[4/dp, 2]", "w": "f32[2, 2]"},
        argument="params={'w': 'o/tp i'}",
        source="model.py:17: x @ w",
        node="mm = aten.mm.default(x, w)",
    )
    assert str(error) == (
        "mm does not fit\n"
        "  node: mm = aten.mm.default(x, w)\n"
        "  line: model.py:17: x @ w\n"
        "  argument: params={'w': 'o/tp i'}\n"
        "  layout: x: f32[4/dp, 2]\n"
        "  layout: w: f32[2, 2]\n"
        "  try: shard the other way"
    )


def test_what_is_not_known_is_not_said() -> None:
    error = SpmdLabError("it broke")
    assert str(error) == "it broke"
    assert (error.node, error.source, error.argument, error.layouts, error.hint) == (None, None, None, {}, None)


def test_layouts_are_copied() -> None:
    layouts = {"x": "f32[4]"}
    error = SpmdLabError("it broke", layouts=layouts)
    layouts.clear()
    assert error.layouts == {"x": "f32[4]"}


@pytest.mark.parametrize(
    ("name", "names", "text"),
    [
        ("wieght", ["weight", "bias"], "did you mean 'weight'?"),
        ("q.weigh", ["q.weight", "k.weight", "bias"], "did you mean 'q.weight' or 'k.weight'?"),
        ("xyz", ["weight", "bias", "bias"], "there are: bias, weight"),
        ("xyz", [f"layer{index}" for index in range(12)], "there are: " + ", ".join(
            ["layer0", "layer1", "layer10", "layer11", "layer2", "layer3", "layer4", "layer5", "..."])),
        ("xyz", [], "there are none"),
    ],
)  # fmt: skip
def test_nearest(name: str, names: list[str], text: str) -> None:
    assert nearest(name, names) == text
