"""Bad input: what each mistake is answered with, word for word."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard

import spmd_lab as sl
from spmd_lab.errors import ArgumentError, LayoutError, MeshError, NotationError, PatternError, UnsupportedOperatorError

MESH = sl.Mesh(dp=2, tp=2)


class Tied(nn.Module):
    """An embedding, two layers, and a head that is the embedding again."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.o, self.e = nn.Linear(8, 8), nn.Linear(8, 8), nn.Embedding(10, 8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.e.weight

    def forward(self, tokens: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.head(self.o(self.q(self.e(tokens)).relu())) * scale


@cache
def traced() -> sl.TracedGraph:
    return sl.trace(Tied(), torch.zeros(4, 6, dtype=torch.int64), torch.tensor(2.0))


MISTAKES: dict[str, tuple[dict[str, Any], type[sl.SpmdLabError], str]] = {
    "unknown axis for the batch": (
        {"batch": "dq"},
        ArgumentError,
        "Mesh(dp=2, tp=2) has no axis 'dq'\n  argument: batch='dq'\n  try: did you mean 'dp'?",
    ),
    "a number has no batch dim": (
        {"batch": ("dp", "scale")},
        ArgumentError,
        "'scale' is a 0-d tensor and has no batch dim\n  argument: batch=('dp', 'scale')\n  try: leave it out",
    ),
    "no such input for the batch": (
        {"batch": ("dp", "tokenz")},
        ArgumentError,
        "Tied has no input 'tokenz'\n  argument: batch=('dp', 'tokenz')\n  try: did you mean 'tokens'?",
    ),
    "a pattern that matches nothing": (
        {"params": {"**.wieght": "o/tp i"}},
        PatternError,
        "'**.wieght' matches no parameter and no buffer\n"
        "  argument: params={'**.wieght': 'o/tp i'}\n  try: did you mean 'weight'?",
    ),
    "a pattern that is shadowed": (
        {"params": {"q.*": "...", "q.weight": "o/tp i"}},
        PatternError,
        "'q.weight' has no effect: 'q.*' matches the same names first\n"
        "  argument: params={'q.weight': 'o/tp i'}\n  try: put the more specific pattern first",
    ),
    "a style for a layer that is not there": (
        {"params": sl.colwise("**.qq", axis="tp")},
        PatternError,
        "'**.qq' matches no parameter and no buffer\n"
        "  argument: params={'**.qq': colwise(axis='tp')}\n  try: did you mean 'q'?",
    ),
    "a style over an axis that is not there": (
        {"params": sl.rowwise("q", axis="tq")},
        PatternError,
        "Mesh(dp=2, tp=2) has no axis 'tq'\n  argument: params={'q': rowwise(axis='tq')}\n  try: did you mean 'tp'?",
    ),
    "tied names that disagree": (
        {"params": {"e.weight": "v/tp d", "head.weight": "v d/tp"}},
        PatternError,
        "'e.weight' and 'head.weight' are one tensor, but two patterns place it differently\n"
        "  argument: params={'head.weight': 'v d/tp'}\n"
        "  layout: e.weight: f32[10/tp, 8]\n  layout: head.weight: f32[10, 8/tp]\n"
        "  try: give both names the same placements, or name one of them",
    ),
    "too few dims": (
        {"params": {"q.weight": "o/tp"}},
        NotationError,
        "1 dim is written, the tensor has 2\n  argument: params={'q.weight': 'o/tp'}\n"
        "  layout: tensor: f32[8, 8]\n  try: one term a dim, or '...' for any number of undivided ones",
    ),
    "too few placements": (
        {"params": {"q.weight": [Shard(0)]}},
        LayoutError,
        "1 placements for the 2 axes of Mesh(dp=2, tp=2)\n  argument: params={'q.weight': [Shard(dim=0)]}\n"
        "  layout: tensor: f32[8, 8]\n"
        "  try: one placement per mesh axis, outermost first: dp: Replicate(), tp: Replicate()",
    ),
    "a dim that the tensor lacks": (
        {"params": {"q.weight": [Shard(2), Replicate()]}},
        LayoutError,
        "S(2) divides a dim that a tensor of shape (8, 8) lacks\n"
        "  argument: params={'q.weight': [Shard(dim=2), Replicate()]}\n"
        "  layout: tensor: f32[8, 8]\n  try: dims run from 0 to 1",
    ),
    "an unknown axis in a placement": (
        {"inputs": {"tokens": "b/dq t"}},
        NotationError,
        "dp=2 x tp=2 has no axis 'dq'\n  argument: inputs={'tokens': 'b/dq t'}\n"
        "  layout: tensor: i64[4, 6]\n  try: did you mean 'dp'?",
    ),
    "something that is no placement": (
        {"params": {"q.weight": 3}},
        PatternError,
        "3 is no placement\n  argument: params={'q.weight': 3}\n"
        '  try: text as "o/tp i", or a list as [Shard(0), Replicate()]',
    ),
    "an input that is not there": (
        {"inputs": {"token": "b/dp t"}},
        ArgumentError,
        "Tied has no input 'token'\n  argument: inputs={'token': ...}\n  try: did you mean 'tokens'?",
    ),
    "a parameter among the inputs": (
        {"inputs": {"q.weight": "b/dp t"}},
        ArgumentError,
        "Tied has no input 'q.weight'\n  argument: inputs={'q.weight': ...}\n"
        "  try: parameters and buffers are placed by params=",
    ),
    "more layouts than inputs": (
        {"inputs": ["b/dp t", None, None]},
        ArgumentError,
        "3 layouts for the 2 tensor inputs of Tied\n  argument: inputs=['b/dp t', None, None]\n"
        "  try: in order: tokens, scale",
    ),
    "an output that is not there": (
        {"outputs": {"outt": "..."}},
        ArgumentError,
        "Tied has no output 'outt'\n  argument: outputs={'outt': '...'}\n  try: did you mean 'out'?",
    ),
    "a layout for another mesh": (
        {"params": {"q.weight": sl.Layout.parse("f32[8/tp, 8]", sl.Mesh(tp=2, dp=2))}},
        LayoutError,
        "the layout is for Mesh(tp=2, dp=2), not for Mesh(dp=2, tp=2)\n"
        "  argument: params={'q.weight': f32[8/tp, 8]}\n  layout: tensor: f32[8, 8]\n"
        "  try: write it as text, or on this mesh",
    ),
    "a layout for another shape": (
        {"params": {"q.weight": sl.Layout.parse("f32[4/tp, 8]", MESH)}},
        LayoutError,
        "the layout is for a tensor of shape [4, 8], not [8, 8]\n"
        "  argument: params={'q.weight': f32[4/tp, 8]}\n  layout: tensor: f32[8, 8]\n"
        "  try: text with names for dims fits any size",
    ),
    "a second axis for the batch": (
        {"batch": ("dp", "tp")},
        ArgumentError,
        "batch divides over one axis; 'tp' is a second one\n  argument: batch=('dp', 'tp')\n"
        '  try: inputs={"tokens": "b/dp/tp ..."} divides over both',
    ),
    "no axis for the batch": (
        {"batch": ()},
        ArgumentError,
        'no axis is named\n  argument: batch=()\n  try: batch="dp"',
    ),
    "a number for the batch": (
        {"batch": 0},
        ArgumentError,
        'batch=0 cannot be an int\n  argument: batch=0\n  try: batch="dp", or batch=("dp", "tokens")',
    ),
    "text for the parameters": (
        {"params": "q.weight"},
        ArgumentError,
        'params cannot be a str\n  argument: params\n  try: a mapping of names to placements: params={"...": "o/tp i"}',
    ),
    "text for the inputs": (
        {"inputs": "b/dp t"},
        ArgumentError,
        "inputs cannot be a str\n  argument: inputs\n"
        '  try: by name: inputs={"x": "b/dp d"}; or a list, in order: inputs=["b/dp d"]',
    ),
    "a number for a pattern": (
        {"params": {0: "o/tp i"}},
        ArgumentError,
        "params={0: ...} cannot be an int\n  argument: params={0: ...}\n"
        "  try: a pattern over the names of parameters, as text",
    ),
    "an unknown way with pending outputs": (
        {"pending": "drop"},
        ArgumentError,
        "pending='drop' is unknown\n  argument: pending='drop'\n  try: \"resolve\" or \"keep\"",
    ),
    "an unknown way with random numbers": (
        {"random": "some"},
        ArgumentError,
        "random='some' is unknown\n  argument: random='some'\n  try: \"exact\" or \"local\"",
    ),
    "an unknown way with operators without a rule": (
        {"unsupported": "ignore"},
        ArgumentError,
        "unsupported='ignore' is unknown\n  argument: unsupported='ignore'\n  try: \"replicate\" or \"error\"",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_its_argument_and_a_way_out(name: str) -> None:
    placing, kind, text = MISTAKES[name]
    with pytest.raises(kind) as caught:
        sl.expand(traced(), MESH, **placing)
    assert type(caught.value) is kind
    assert str(caught.value) == text


@torch.library.custom_op("spmd_lab_tests::mystery", mutates_args=())
def mystery(x: torch.Tensor) -> torch.Tensor:
    """An operator that nobody has a rule for."""
    return x.flip(0)


@mystery.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def no_rule(x: torch.Tensor) -> torch.Tensor:
    return mystery(x)


def several_gaps(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    one = mystery(x)
    other = mystery(x * 2)
    return one, other, x.cos()


def refusal(fn: Any) -> str:
    with pytest.raises(UnsupportedOperatorError) as caught:
        sl.spmd_expand(fn, torch.ones(4, 3), mesh=sl.Mesh(dp=2), batch="dp", unsupported="error")
    return str(caught.value)


def test_an_operator_without_a_rule_is_refused_by_name_and_line() -> None:
    line = no_rule.__code__.co_firstlineno + 1
    text = refusal(no_rule)
    assert text.startswith("no sharding rule for spmd_lab_tests.mystery.default: ")
    assert text.endswith(
        f"\n  node: mystery\n  line: test_errors.py:{line}: return mystery(x)\n  layout: x: f32[4/dp, 3]\n"
        '  try: unsupported="replicate" gathers what it reads; sl.register_rule teaches how to divide it'
    )


def test_all_gaps_are_reported_in_one_list() -> None:
    text = refusal(several_gaps)
    assert text.startswith("2 calls cannot be expanded:\nno sharding rule for spmd_lab_tests.mystery.default")
    assert text.count("no sharding rule for") == 2


def test_an_operator_without_a_rule_is_gathered_and_marked() -> None:
    expansion = sl.spmd_expand(no_rule, torch.rand(5, 3), mesh=sl.Mesh(dp=2), batch="dp")
    (step,) = expansion.steps
    assert (step.fallback or "").startswith("no sharding rule for spmd_lab_tests.mystery.default")
    assert [each.kind for each in step.collectives] == ["all_gather"]
    expansion.program.verify().raise_if_wrong()


def test_what_is_whole_already_needs_no_fallback() -> None:
    expansion = sl.spmd_expand(no_rule, torch.rand(5, 3), mesh=sl.Mesh(dp=2), unsupported="error")
    assert [step.fallback for step in expansion.steps] == [None]


def test_a_refusal_leaves_nothing_behind() -> None:
    first, second = refusal(no_rule), refusal(no_rule)
    assert first == second
    assert sl.spmd_expand(no_rule, torch.rand(4, 3), mesh=sl.Mesh(dp=2), batch="dp").program.verify().ok


R = Replicate()


@pytest.mark.parametrize(
    ("verb", "text"),
    [
        (lambda: sl.expand(nn.Linear(2, 2), MESH), "traced cannot be a Linear"),  # type: ignore[arg-type]
        (lambda: sl.expand(traced(), (2, 4)), "mesh cannot be a tuple"),  # type: ignore[arg-type]
        (lambda: sl.rebuild(traced()), "expansion cannot be a TracedGraph"),  # type: ignore[arg-type]
        (lambda: sl.Layout.parse(3, MESH), "text cannot be an int"),  # type: ignore[arg-type]
        (lambda: sl.Layout.parse("f32[2/dp]", "dp=2"), "mesh cannot be a str"),  # type: ignore[arg-type]
        (lambda: expansion()[0], r"expansion\[0\] cannot be an int"),  # type: ignore[index]
        (lambda: expansion().program.for_rank("a"), "dp=2 x tp=2 has no rank 'a'"),  # type: ignore[arg-type]
        (lambda: sl.colwise(axis="tp"), "colwise names no layer"),
        (lambda: sl.rowwise(0, axis="tp"), r"rowwise\(0\) cannot be an int"),  # type: ignore[arg-type]
        (lambda: sl.rowwise("up", axis=0), r"rowwise\(axis=0\) cannot be an int"),  # type: ignore[arg-type]
        (lambda: sl.expand(traced(), MESH, params=0), "params cannot be an int"),  # type: ignore[arg-type]
        (lambda: sl.expand(traced(), MESH, stored=torch.ones(2)), "stored cannot be a Tensor"),  # type: ignore[arg-type]
        (lambda: sl.expand(traced(), MESH, inputs=""), "inputs cannot be a str"),
        (lambda: sl.expand(traced(), MESH, random=torch.ones(2)), "random=.* is unknown"),  # type: ignore[arg-type]
        (lambda: sl.expand(traced(), None), "mesh cannot be None"),  # type: ignore[arg-type]
        (lambda: sl.trace(nn.Linear(2, 2), kwargs=[1]), "kwargs cannot be a list"),  # type: ignore[arg-type]
        (lambda: sl.trace(nn.Linear(2, 2), backward=0), "backward cannot be an int"),  # type: ignore[arg-type]
        (lambda: sl.Layout((2.5,), torch.float32, MESH, [R, R]), r"\(2.5,\) is no shape"),  # type: ignore[arg-type]
        (lambda: sl.Layout((-2,), torch.float32, MESH, [R, R]), r"\(-2,\) is no shape"),
        (lambda: sl.Layout((2,), "f32", MESH, [R, R]), "dtype cannot be a str"),  # type: ignore[arg-type]
        (lambda: sl.Layout((2,), torch.float32, MESH, "d"), "placements cannot be a str"),  # type: ignore[arg-type]
        (lambda: sl.Layout((2,), torch.float32, (2, 2), [R, R]), "mesh cannot be a tuple"),  # type: ignore[arg-type]
        (lambda: traced().source(3), "node cannot be an int"),  # type: ignore[arg-type]
        (lambda: traced().phase(None), "node cannot be None"),  # type: ignore[arg-type]
        (lambda: traced().node([]), "name cannot be a list"),  # type: ignore[arg-type]
        (lambda: expansion().layout({}), "node cannot be a dict"),  # type: ignore[arg-type]
        (lambda: expansion().step([]), "name cannot be a list"),  # type: ignore[arg-type]
        (lambda: expansion().steps["mm"], r"steps\['mm'\] cannot be a str"),  # type: ignore[call-overload]
        (lambda: expansion().collectives["mm"], r"collectives\['mm'\] cannot be a str"),  # type: ignore[call-overload]
        (lambda: expansion().collectives.by(None), "there is no key None"),  # type: ignore[arg-type]
        (lambda: expansion().collectives.where(module=1), "module cannot be an int"),  # type: ignore[arg-type]
        (lambda: expansion().program.verify(seed="a"), "seed cannot be a str"),  # type: ignore[arg-type]
        (lambda: expansion().program.verify(seed=1 << 70), "there is no seed"),
        (lambda: expansion().program.verify(inputs=3), "inputs cannot be an int"),  # type: ignore[arg-type]
        (lambda: expansion().program.verify(ranks=3), "ranks cannot be an int"),  # type: ignore[arg-type]
        (lambda: expansion().program.verify(ranks=[0.5]), "has no rank 0.5"),  # type: ignore[list-item]
        (lambda: expansion().program.for_rank(0, "dp"), "device_mesh cannot be a str"),  # type: ignore[arg-type]
    ],
)
def test_what_is_of_a_wrong_kind_is_named(verb: Any, text: str) -> None:
    with pytest.raises(sl.SpmdLabError, match=text) as caught:
        verb()
    assert "try: " in str(caught.value)


def test_a_bare_layer_is_matched_by_any_number_of_components() -> None:
    graph = sl.trace(nn.Linear(4, 8), torch.ones(2, 4))
    expansion = sl.expand(graph, MESH, params=sl.colwise("**", axis="tp"))
    assert str(expansion.layout("weight")) == "f32[8/tp, 4]"


def expansion() -> sl.Expansion:
    return sl.expand(traced(), MESH, batch="dp")


@pytest.mark.parametrize(
    ("key", "hint"),
    [("mm_99", "did you mean 'mm_"), ("nowhere.py:3", "there are: "), ("qq", "did you mean")],
)
def test_a_key_that_finds_nothing_says_what_is_near(key: str, hint: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        expansion()[key]
    assert str(caught.value).startswith(f"nothing in Tied is called {key!r}\n  argument: expansion[{key!r}]\n")
    assert hint in str(caught.value)


def test_a_rank_that_the_mesh_lacks() -> None:
    with pytest.raises(MeshError) as caught:
        expansion().program.for_rank(4)
    assert str(caught.value) == "dp=2 x tp=2 has no rank 4\n  argument: 4\n  try: ranks run from 0 to 3"


def test_a_tensor_that_is_not_there() -> None:
    with pytest.raises(ArgumentError, match="Tied has no tensor 'nix'"):
        expansion().layout("nix")


def test_an_output_kept_pending_as_a_maximum_has_no_tangent() -> None:
    def tallest(x: torch.Tensor) -> torch.Tensor:
        return x.amax(0)

    graph = sl.trace(tallest, torch.rand(4, 3, requires_grad=True))
    with pytest.raises(sl.SpmdLabError) as caught:
        sl.expand(graph, sl.Mesh(dp=2), batch="dp", pending="keep")
    assert "out is kept pending, and not as a sum" in str(caught.value)
    assert "layout: out: f32[3]{max: dp}" in str(caught.value)
