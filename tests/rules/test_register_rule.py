"""Rules that users register: read, tried on simulated ranks, used, and taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard

import spmd_lab as sl
from spmd_lab.errors import ArgumentError, NotationError, RuleError, UnsupportedOperatorError
from spmd_lab.rules import OpCall, Plan, Way, choose_ways, registered_rule
from spmd_lab.rules.strategies import run_operator

if TYPE_CHECKING:
    from torch import fx

    from spmd_lab.local_graph import LocalGraphBuilder

aten = torch.ops.aten


@torch.library.custom_op("spmd_lab_tests::swish", mutates_args=())
def swish(x: torch.Tensor, beta: float = 1.0) -> torch.Tensor:
    return x * torch.sigmoid(beta * x)


@swish.register_fake
def _(x: torch.Tensor, beta: float = 1.0) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("spmd_lab_tests::rows_and_norm", mutates_args=())
def rows_and_norm(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x * weight, (x * weight).square().sum()


@rows_and_norm.register_fake
def _(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), x.new_empty(())


@torch.library.custom_op("spmd_lab_tests::picky", mutates_args=())
def picky(x: torch.Tensor) -> torch.Tensor:
    if not x.numel():
        raise ValueError("there is nothing here")
    return x * 2


@picky.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("spmd_lab_tests::joined", mutates_args=())
def joined(parts: list[torch.Tensor], dim: int = 0) -> torch.Tensor:
    return torch.cat(parts, dim)


@joined.register_fake
def _(parts: list[torch.Tensor], dim: int = 0) -> torch.Tensor:
    return torch.cat(parts, dim)


@torch.library.custom_op("spmd_lab_tests::centred", mutates_args=())
def centred(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(0)


@centred.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


SWISH = torch.ops.spmd_lab_tests.swish.default
X = torch.randn(5, 4)
DP = sl.Mesh(dp=4)


def fallbacks(fn: Any, *tensors: torch.Tensor, inputs: list[str], mesh: sl.Mesh = DP) -> list[str | None]:
    expansion = sl.spmd_expand(fn, *tensors, mesh=mesh, inputs=inputs)
    expansion.program.verify().raise_if_wrong()
    return [step.fallback for step in expansion.steps if not step.name.startswith("resolve:")]


# --- rules that are right -----------------------------------------------------------------------


def test_a_rule_is_used_while_it_stands_and_no_longer() -> None:
    (before,) = fallbacks(swish, X, inputs=["b/dp d"])
    assert before is not None
    with sl.register_rule(swish, ["b/* d -> b/* d", "b d/* -> b d/*"], example=(X,)) as rule:
        assert rule.ways == ("b/* d -> b/* d", "b d/* -> b d/*")
        assert fallbacks(swish, X, inputs=["b/dp d"]) == [None]
        assert fallbacks(swish, X, inputs=["b/a d/b"], mesh=sl.Mesh(a=2, b=3)) == [None]
        assert fallbacks(swish, X, inputs=["b/b/a d"], mesh=sl.Mesh(a=2, b=3)) == [None]
    assert fallbacks(swish, X, inputs=["b/dp d"]) == [before]


def test_a_rule_prints_what_it_was_tried_on() -> None:
    with sl.register_rule(
        SWISH, "... d/* -> ... d/*", example=[(X, {"beta": 0.5}), (torch.randn(2, 3, 4), 2.0)]
    ) as rule:
        assert str(rule) == (
            "rule for spmd_lab_tests.swish.default, equal to the whole in 6 programs\n  ... d/* -> ... d/*"
        )


def test_several_outputs_and_a_pending_one() -> None:
    ways = [
        "b/* d, d -> b/* d, {sum: *}",
        "b d/*, d/* -> b d/*, {sum: *}",
        Way((Replicate(), Replicate()), (Replicate(), Replicate())),
    ]
    with pytest.raises(NotationError, match="this way divides nothing"):
        sl.register_rule(rows_and_norm, "b d, d -> b d, ", example=(X, torch.randn(4)))
    with sl.register_rule(rows_and_norm, ways, example=(X, torch.randn(4))) as rule:
        assert rule.ways[-1] == "5 4, 4 -> 5 4, "
        expansion = sl.spmd_expand(rows_and_norm, X, torch.randn(4), mesh=DP, inputs=["b/dp d"], pending="keep")
        assert list(map(str, expansion.output_layouts)) == ["f32[5/dp, 4]", "f32[]{sum: dp}"]
        expansion.program.verify().raise_if_wrong()


def test_an_operator_that_refuses_empty_shards_is_spared_them() -> None:
    with pytest.raises(sl.SpmdLabError, match="there is nothing here"):
        sl.spmd_expand(lambda x: picky(x[:0]), X, mesh=DP).program.verify().raise_if_wrong()
    with sl.register_rule(picky, "b/* d -> b/* d", example=X):
        assert fallbacks(picky, torch.randn(2, 3), inputs=["b/dp d"]) == [None]


def test_a_function_of_the_call_gives_the_ways() -> None:
    @sl.register_rule(joined, example=[([X, torch.randn(2, 4)],), ([X, torch.randn(5, 2), X], 1)])
    def rule(call: OpCall) -> list[Way]:
        other = [dim for dim in range(2) if dim != call.argument("dim")]
        alike = [Way((Shard(dim),) * len(call.tensors), (Shard(dim),)) for dim in other]
        return [*alike, Way((Partial(),) * len(call.tensors), (Partial(),))]

    with rule:
        assert rule.ways == (
            "5 4/*, 2 4/* -> 7 4/*",
            "5 4{sum: *}, 2 4{sum: *} -> 7 4{sum: *}",
            "5/* 4, 5/* 2, 5/* 4 -> 5/* 10",
            "5 4{sum: *}, 5 2{sum: *}, 5 4{sum: *} -> 5 10{sum: *}",
        )
        assert fallbacks(lambda x, y: joined([x, y], 1), X, X + 1, inputs=["b/dp d"] * 2) == [None]


def centred_over_ranks(call: OpCall, divisor: int) -> Plan:
    """Subtract the mean of all ranks, with the sum of each rank added up where rows are divided."""
    (x,) = call.tensors
    rows = x.layout.global_shape[0]
    kept = [each if isinstance(each, Shard) else Replicate() for each in x.layout.placements]
    need = x.layout.with_placements(kept)
    summed = need.with_placements([Partial() if each == Shard(0) else Replicate() for each in kept])

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> fx.Node:
        total = builder.call(aten.sum.dim_IntList, nodes[0], [0])
        for axis in summed.pending:
            total = builder.all_reduce(total, axis, summed, need)
        mean = builder.call(aten.div.Tensor, total, rows + divisor)
        return builder.call(aten.sub.Tensor, nodes[0], mean)

    return Plan((need,), call.output_layouts([kept]), emit)


def test_a_plan_of_several_operators_and_collectives() -> None:
    with sl.register_rule(centred, lambda call: centred_over_ranks(call, 0), example=X) as rule:
        assert rule.ways == ()
        expansion = sl.spmd_expand(centred, X, mesh=sl.Mesh(dp=2, tp=2), inputs=["b/dp d/tp"])
        expansion.program.verify().raise_if_wrong()
        assert [each.kind for each in expansion.collectives] == ["all_reduce"]
        assert str(expansion.output_layouts[0]) == "f32[5/dp, 4/tp]"


def test_a_plan_that_is_wrong_is_refused() -> None:
    with pytest.raises(
        RuleError, match=r"the rule for spmd_lab_tests.centred.default is wrong on x=2: output on rank 0"
    ):
        sl.register_rule(centred, lambda call: centred_over_ranks(call, 1), example=X)


def test_a_rule_of_ours_is_replaced() -> None:
    def of_product() -> str:
        expansion = sl.spmd_expand(torch.mm, X, X.T.clone(), mesh=DP, inputs=["b d/dp", "d/dp o"], pending="keep")
        expansion.program.verify().raise_if_wrong()
        return str(expansion.output_layouts[0])

    before = of_product()
    with sl.register_rule(aten.mm.default, "b/* d, d o -> b/* o", example=(X, torch.randn(4, 3))):
        assert (before, of_product()) == ("f32[5, 5]{sum: dp}", "f32[5/dp, 5]")
    assert of_product() == before


def test_a_registered_rule_is_replaced_only_on_demand_and_comes_back() -> None:
    with sl.register_rule(swish, "b/* d -> b/* d", example=X) as first:
        with pytest.raises(RuleError) as caught:
            sl.register_rule(SWISH, "b d/* -> b d/*", example=X)
        assert str(caught.value) == (
            "spmd_lab_tests.swish.default has a registered rule already\n"
            "  argument: op=spmd_lab_tests.swish.default\n"
            "  try: replace=True; or remove() what registering it returned"
        )
        second = sl.register_rule(SWISH, "b d/* -> b d/*", example=X, replace=True)
        assert fallbacks(swish, X, inputs=["b d/dp"]) == [None]
        first.remove()
        first.remove()
        assert fallbacks(swish, X, inputs=["b d/dp"]) == [None]
        second.remove()
    assert registered_rule(SWISH) is None


def test_a_call_that_no_way_fits_is_a_gap() -> None:
    with sl.register_rule(swish, "a/* 4 -> a/* 4", example=X):
        assert fallbacks(swish, X, inputs=["b/dp d"]) == [None]
        why = "no way of the registered rule for spmd_lab_tests.swish.default fits: 'a/* 4 -> a/* 4', since '4' is 4, "
        assert fallbacks(swish, torch.randn(5, 6), inputs=["b/dp d"]) == [f"{why}and 6 in tensor 0 of shape [5, 6]"]
        with pytest.raises(UnsupportedOperatorError, match="no way of the registered rule"):
            sl.spmd_expand(swish, torch.randn(5, 6), mesh=DP, batch="dp", unsupported="error")


def test_a_name_that_stands_twice_keeps_stretched_dims_whole() -> None:
    ways = ["b/* d, b/* d -> b/* d", "b/* d, 1 d -> b/* d"]
    with pytest.raises(RuleError, match="'b/\\* d, 1 d -> b/\\* d' fits no example: '1' is 1, and 5 in tensor 1"):
        sl.register_rule(aten.mul.Tensor, ways, example=(X, X + 1))
    with sl.register_rule(aten.mul.Tensor, ways, example=[(X, X + 1), (X, torch.randn(1, 4))]):
        assert fallbacks(torch.mul, X, torch.randn(1, 4), inputs=["b/dp d"]) == [None]
        (gap,) = fallbacks(torch.mul, X, torch.randn(5, 1), inputs=["b/dp d", "b/dp d"])
        assert "'d' is 4, and 1 in tensor 1 of shape [5, 1]" in (gap or "")


# --- rules that are wrong -----------------------------------------------------------------------

TRY = "\n  try: what does each rank compute from these shards, and how do the results make up the whole?"
WRONG: dict[str, tuple[Any, Any, tuple[Any, ...], str]] = {
    "not linear": (
        aten.exp.default,
        "n{sum: *} -> n{sum: *}",
        (torch.tensor([1.0, 2.0]),),
        "the way 'n{sum: *} -> n{sum: *}' for aten.exp.default is wrong on x=2: output on rank 0 at [",
    ),
    "the wrong dim": (
        aten.relu.default,
        "b/* d -> b d/*",
        (X,),
        "the way 'b/* d -> b d/*' for aten.relu.default is wrong on x=2: output 0 of rank 0 has shape [3, 4], not "
        "[5, 2] as f32[5, 4/x] says\n  layout: self: f32[5/x, 4]" + TRY,
    ),
    "a forgotten sum": (
        aten.sum.default,
        "n/* -> ",
        (torch.arange(1.0, 5),),
        "the way 'n/* ->' for aten.sum.default is wrong on x=2: output on rank 0 at []: expected 10.0, got 3.0; the "
        "value differs\n  layout: self: f32[4/x]\n  layout: sum_1: f32[]" + TRY,
    ),
    "the wrong reduction": (
        aten.amax.default,
        "n/* -> {sum: *}",
        (torch.arange(1.0, 5),),
        "the way 'n/* -> {sum: *}' for aten.amax.default is wrong on x=2: output on rank 0 at []: expected 4.0, got "
        "6.0; the pieces of ranks 0, 1, reduced (sum over x), differ\n"
        "  layout: self: f32[4/x]\n  layout: amax: f32[]{sum: x}" + TRY,
    ),
    "right for even shards alone": (
        aten.mean.default,
        "n/* -> {avg: *}",
        (torch.tensor([1.0, 2.0, 6.0, 9.0]),),
        "the way 'n/* -> {avg: *}' for aten.mean.default is wrong on x=3: output on rank 0 at []: expected 4.5, got "
        "3.0; the pieces of ranks 0, 1, 2, reduced (avg over x), differ\n"
        "  layout: self: f32[4/x]\n  layout: mean: f32[]{avg: x}" + TRY,
    ),
    "positions within the shard": (
        aten.argmax.default,
        "n/* d -> d{max: *}",
        (torch.tensor([[1.0, 9.0], [2.0, 8.0], [7.0, 3.0], [0.0, 0.0]]), 0),
        "the way 'n/* d -> d{max: *}' for aten.argmax.default is wrong on x=2: output on rank 0 at [0]: expected 2, "
        "got 1; the pieces of ranks 0, 1, reduced (max over x), differ\n"
        "  layout: self: f32[4/x, 2]\n  layout: argmax: i64[2]{max: x}" + TRY,
    ),
    "never taken": (
        aten.relu.default,
        ["n/* -> n/*", "a/* -> a{sum: *}"],
        (torch.randn(4),),
        "the ways 'n/* -> n/*' and 'a/* -> a{sum: *}' need the same, and so the second would never be taken\n"
        "  argument: ways\n  try: leave one of them out",
    ),
    "fits nothing": (
        aten.relu.default,
        "b/* d -> b/* d",
        (torch.randn(4),),
        "the way 'b/* d -> b/* d' fits no example: it has 2 dims where tensor 0 has shape [4]\n  argument: example\n"
        "  try: an example for it as well, in a list: example=[(x,), (y, z)]",
    ),
    "an example that cannot tell": (
        aten.relu.default,
        "n/* -> n/*",
        (torch.ones(4),),
        "all elements of 'self' are equal, so that an exchange of them would go unseen\n"
        "  argument: example\n  try: torch.randn(4)",
    ),
    "several operators": (
        aten.linear.default,
        "b/* d, o d -> b/* o",
        (X, torch.randn(3, 4)),
        "aten.linear.default is not one operator of a traced program: it becomes aten.t.default, aten.mm.default\n"
        "  argument: op=aten.linear.default\n  try: a rule for each of those",
    ),
    "no tensor": (
        aten.full.default,
        "n/* -> n/*",
        ([3], 1.0),
        "there is no tensor in the example\n  argument: example\n  try: example=(torch.randn(5, 4),)",
    ),
    "too many arguments": (
        aten.relu.default,
        "n/* -> n/*",
        (X, X),
        "aten.relu.default takes 1 arguments, the example has 2\n  argument: example\n  try: in order: self",
    ),
    "no answer": (
        aten.relu.default,
        lambda call: None,
        (X,),
        'the rule answers NoneType\n  argument: ways\n  try: a list of ways, as ["b/* d -> b/* d"], or a Plan',
    ),
    "no way": (
        aten.relu.default,
        [3],
        (X,),
        '3 is no way\n  try: "b/* d -> b/* d", or Way(needs, outputs) of placements',
    ),
    "no placement": (
        aten.relu.default,
        [(["b"], ["b"])],
        (X,),
        "'b' is no placement of a way\n  try: Shard(dim), Replicate() or Partial()",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_named_and_not_registered(name: str) -> None:
    op, ways, example, text = WRONG[name]
    with pytest.raises(RuleError) as caught:
        sl.register_rule(op, ways, example=example)
    assert str(caught.value).startswith(text)
    if not text.endswith("at ["):
        assert str(caught.value) == text
    assert registered_rule(op) is None


def test_an_error_holds_what_it_says() -> None:
    with pytest.raises(RuleError) as caught:
        sl.register_rule(aten.sum.default, "n/* -> ", example=(torch.arange(1.0, 5),))
    error = caught.value
    assert (error.way, error.rank, error.index, error.expected, error.got) == ("n/* ->", 0, (), 10.0, 3.0)


def test_a_constant_of_the_example_may_decide() -> None:
    ways, x = ["a{max: *} -> a{max: *}", "a{sum: *} -> a{sum: *}", "a/* -> a/*"], torch.tensor([1.0, -2.0, 3.0])
    with sl.register_rule(aten.mul.Scalar, ways, example=(x, 2)) as rule:
        assert rule.tried.programs == 2 + 2 + 3 + 9
    with pytest.raises(RuleError, match="is wrong") as caught:
        sl.register_rule(aten.mul.Scalar, ways, example=(x, -2))
    assert caught.value.way == "a{max: *} -> a{max: *}"


@pytest.mark.parametrize(
    ("op", "options", "text"),
    [
        (
            torch.ops.aten.add,
            {"ways": "n/*, n/* -> n/*", "example": (X, X)},
            "aten.add has several overloads\n  argument: op\n  try: one of aten.add.Tensor, aten.add.Scalar, ",
        ),
        (
            torch.relu,
            {"ways": "n/* -> n/*", "example": X},
            "'relu' is no operator\n  argument: op\n  try: torch.ops.mylib.swish.default",
        ),
        (swish, {"ways": [], "example": X}, 'ways has no way\n  argument: ways\n  try: ["b/* d -> b/* d"]'),
        (swish, {"ways": 3, "example": X}, "ways cannot be an int\n  argument: ways"),
        (swish, {"ways": "n/* -> n/*", "example": 3}, "example cannot be an int\n  argument: example"),
        (swish, {"ways": "n/* -> n/*", "example": []}, "example is empty\n  argument: example"),
        (swish, {"ways": "n/* -> n/*", "example": [X]}, "example cannot be a Tensor\n  argument: example"),
    ],
)
def test_a_wrong_argument_is_named(op: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        sl.register_rule(op, **options)
    assert str(caught.value).startswith(text)


# --- the text of a way --------------------------------------------------------------------------

UNREADABLE = {
    "b/* d": "a way has one arrow",
    "b/* -> b/* -> b/*": "a way has one arrow",
    "b/tp d -> b/tp d": "cannot read 'b/tp'\n  argument: 'b/tp d -> b/tp d'\n  try: a way is over one axis, "
    "whichever it is: b/*",
    "b-c -> b/*": "cannot read 'b-c'",
    "b/* d/* -> b/* d": "'b/* d/*' uses the axis twice",
    "b/*{sum: *} -> b/*": "'b/*{sum: *}' uses the axis twice",
    "... a/* ... -> a/*": "'...' stands twice",
    ".../* -> a": "'...' cannot be divided\n  argument: '.../* -> a'\n  try: name the dim that is: a/* ..., or ... a/*",
    "a/* -> a{sum: tp}": "cannot read '{sum: tp}'\n  argument: 'a/* -> a{sum: tp}'\n"
    "  try: a reduction pending on the axis: {sum: *}, with one of sum, avg, max, min, product",
    "a/* -> a{median: *}": "cannot read '{median: *}'",
    "a b -> a b": "this way divides nothing\n  argument: 'a b -> a b'\n"
    "  try: leave it out: to run an operator whole on every rank is always possible",
}


@pytest.mark.parametrize("text", UNREADABLE)
def test_a_way_that_does_not_read(text: str) -> None:
    with pytest.raises(NotationError) as caught:
        sl.register_rule(swish, text, example=X)
    assert str(caught.value).startswith(UNREADABLE[text])


def test_ways_of_ours_may_be_used_in_a_rule_of_yours() -> None:
    def rule(call: OpCall) -> Plan:
        return choose_ways(call, [Way((Shard(0),), (Shard(0),))], run_operator(call))

    with sl.register_rule(swish, rule, example=X):
        assert fallbacks(swish, X, inputs=["b/dp d"]) == [None]


def test_a_rule_that_raises_is_named_with_its_cause() -> None:
    with pytest.raises(sl.SpmdLabError, match="raises ZeroDivisionError: division by zero") as caught:
        sl.register_rule(torch.ops.aten.trace.default, lambda call: 1 / 0, example=(torch.randn(4, 4),))  # type: ignore[arg-type, return-value]
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
