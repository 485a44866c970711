"""Lines of a magic: where options end, what is a call, and how rules are separated."""

from __future__ import annotations

import pytest

from spmd_lab.jupyter.command_line import LineError, call_of, rules_of, separate, split_top_level


@pytest.mark.parametrize(
    ("line", "options", "call"),
    [
        ("model(x)", [], "model(x)"),
        ("model(x) --mesh dp=4", ["--mesh", "dp=4"], "model(x)"),
        ("--mesh dp=2,tp=4 --verify model(x, y)", ["--mesh", "dp=2,tp=4", "--verify"], "model(x, y)"),
        ("-o kept model(x - 1, k=-2)", ["-o", "kept"], "model(x - 1, k=-2)"),
        ("--mesh=dp=4 model(x)", ["--mesh", "dp=4"], "model(x)"),
        ('--params "**.weight=o/dp i" f(x)', ["--params", "**.weight=o/dp i"], "f(x)"),
        ("--params='a=b/dp d' f(x)", ["--params", "a=b/dp d"], "f(x)"),
        ('f(x) --params colwise("**.q", axis="tp")', ["--params", 'colwise("**.q", axis="tp")'], "f(x)"),
        ('f(d["a  b"], "--mesh dp=3") --mesh dp=2', ["--mesh", "dp=2"], 'f(d["a  b"], "--mesh dp=3")'),
        ("f('it\\'s', x) --batch dp", ["--batch", "dp"], "f('it\\'s', x)"),
        ("f(x) --batch", ["--batch"], "f(x)"),
    ],
)
def test_options_stand_before_or_after_the_call(line: str, options: list[str], call: str) -> None:
    assert separate(line, {"--verify"}) == (options, call)


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("x=b/dp d", {"x": "b/dp d"}),
        ("**.q=o/tp i, **.o=o i/tp", {"**.q": "o/tp i", "**.o": "o i/tp"}),
        ("x=f32[8/dp, 4]{sum: tp}, y=(a b/tp) c", {"x": "f32[8/dp, 4]{sum: tp}", "y": "(a b/tp) c"}),
        ("a=b{sum: dp, tp},c=d", {"a": "b{sum: dp, tp}", "c": "d"}),
        ("scale=", {"scale": ""}),
    ],
)
def test_rules_are_separated_by_commas_outside_of_brackets(text: str, rules: dict[str, str]) -> None:
    assert rules_of(text) == rules


@pytest.mark.parametrize(
    ("act", "what"),
    [
        (lambda: rules_of("**.weight"), "is no rule"),
        (lambda: rules_of("=b/dp"), "is no rule"),
        (lambda: rules_of("a=b, a=c"), "a stands twice"),
        (lambda: rules_of("a=f32[8/dp"), "a bracket stays open"),
        (lambda: split_top_level('f("x)', " "), "a quote stays open"),
        (lambda: call_of(""), "the call is missing"),
        (lambda: call_of("model"), "model is not a call"),
        (lambda: call_of("x = f(y)"), "is not a call"),
        (lambda: call_of("f(x) + 1"), "is not a call"),
    ],
)
def test_mistakes_are_told_in_one_line(act: object, what: str) -> None:
    with pytest.raises(LineError, match=what) as caught:
        act()  # type: ignore[operator]
    assert "\n" not in str(caught.value)
