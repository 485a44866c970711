"""What a program is verified on, what is left as it was, and what the report says."""

from __future__ import annotations

import time
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import spmd_lab as sl
from spmd_lab.errors import ArgumentError, MeshError, VerificationError
from spmd_lab.prove.inputs import global_values
from tests.prove.mutants import Perceptron, altered, attention, bypass, c10d, names, perceptron, weighted


def expanded(fn: object, *args: torch.Tensor, mesh: sl.Mesh, batch: object = "dp", **more: object) -> sl.Program:
    tracing = {key: more.pop(key) for key in ("loss", "backward") if key in more}
    traced = sl.trace(fn, *args, **tracing)  # type: ignore[arg-type]
    return sl.rebuild(sl.expand(traced, mesh, batch=batch, **more))  # type: ignore[arg-type]


# --- values -------------------------------------------------------------------------------------


def test_it_is_deterministic_and_a_seed_changes_what_is_drawn() -> None:
    program = expanded(nn.Linear(4, 2), torch.randn(8, 4), mesh=sl.Mesh(dp=4))
    assert repr(program.verify()) == repr(program.verify())
    assert program.verify(seed=1).seed == 1
    assert program.verify(seed=1).outputs != program.verify().outputs


def test_inputs_can_be_given_by_name_and_by_position() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x / y).sum()

    program = expanded(fn, torch.ones(8), torch.ones(8), mesh=sl.Mesh(dp=4), backward=False)
    zero = torch.zeros(8)
    assert program.verify().ok
    for inputs in ({"y": zero}, [None, zero]):
        report = program.verify(inputs)
        assert report.ok, report
    (output,) = program.verify([torch.full((8,), 3.0)]).outputs
    assert output.ok


@pytest.mark.parametrize(
    ("inputs", "message", "hint"),
    [
        ({"z": torch.ones(8)}, "fn has no input 'z'", "there are: x"),
        ({"x": torch.ones(7)}, r"input 'x' was traced as \[8\] torch.float32, not \[7\]", "whole tensors"),
        ({"x": torch.ones(8, dtype=torch.int64)}, "not .* torch.int64", "whole tensors"),
        ([torch.ones(8), torch.ones(8)], "fn has 1 tensor inputs, not 2", "in order: x"),
        ({"x": 3}, "is given int, which has no data", "a tensor with data"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs: object, message: str, hint: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    program = expanded(fn, torch.ones(8), mesh=sl.Mesh(dp=4), backward=False)
    with pytest.raises(ArgumentError, match=message) as caught:
        program.verify(inputs)  # type: ignore[arg-type]
    assert hint in str(caught.value.hint)


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4).eval()
        self.head = nn.Linear(4, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.table(tokens).flatten(0, 1)))


@pytest.mark.parametrize("where", ["meta", "fake"])
def test_values_are_drawn_where_there_are_none(where: str) -> None:
    """Indices stay within their tables, variances positive, classes within the classes."""
    targets = torch.tensor([4, 0, 3, 1] * 4)
    if where == "meta":
        model, tokens = Lookup().to("meta"), torch.zeros(8, 2, dtype=torch.int64, device="meta")
        traced = sl.trace(model, tokens, loss=lambda out: out.square().mean())
    else:
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
            model, tokens = Lookup(), torch.zeros(8, 2, dtype=torch.int64)
        traced = sl.trace(model, tokens, loss=lambda out: F.cross_entropy(out, targets))
    program = sl.rebuild(sl.expand(traced, sl.Mesh(dp=2), batch=("dp", "tokens")))
    report = program.verify()
    report.raise_if_wrong()
    values = dict(zip((each.name for each in traced.inputs), global_values(traced, None, 0), strict=True))
    assert values["tokens"].unique().numel() > 3
    assert 0 <= int(values["tokens"].min()) <= int(values["tokens"].max()) < 7
    assert float(values["norm.running_var"].min()) > 0.1
    assert values["head.weight"].std() > 0.05
    assert all(
        torch.equal(again, value) for again, value in zip(global_values(traced, None, 0), values.values(), strict=True)
    )
    assert not torch.equal(global_values(traced, None, 1)[0], global_values(traced, None, 0)[0])


def test_classes_and_rows_that_are_looked_up_exist() -> None:
    def fn(scores: torch.Tensor, classes: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return F.nll_loss(scores.log_softmax(-1)[rows], classes)

    scores, indices = torch.zeros(6, 3, device="meta"), torch.zeros(8, dtype=torch.int64, device="meta")
    traced = sl.trace(fn, scores, indices, indices.clone(), backward=False)
    _, classes, rows = global_values(traced, None, 0)
    assert (int(classes.max()), int(rows.max())) == (2, 5)


def test_tangents_are_uneven_and_never_near_zero() -> None:
    traced = sl.trace(nn.Linear(4, 16), torch.zeros(8, 4))
    (tangent,) = [
        value
        for each, value in zip(traced.inputs, global_values(traced, None, 0), strict=True)
        if each.role == "tangent"
    ]
    assert 0.5 <= float(tangent.abs().min()) < float(tangent.abs().max()) <= 1.5
    assert float(tangent.min()) < 0 < float(tangent.max())


def test_a_pending_input_is_split_into_pieces_that_sum_to_it() -> None:
    program = expanded(
        lambda x: (x * 2).relu(),
        torch.randn(4, 3),
        mesh=sl.Mesh(dp=2, tp=2),
        batch=None,
        backward=False,
        inputs={"x": "f32[4/dp, 3]{sum: tp}"},
    )
    assert program.input_layouts[0].is_pending
    assert program.verify().ok


@pytest.mark.parametrize("fn", [lambda x: x.sum(0), lambda x: x.mean(), lambda x: x.amax(0), lambda x: x.amin()])
def test_outputs_that_are_kept_pending_are_reduced_by_their_kind(fn: object) -> None:
    program = expanded(fn, torch.randn(8, 3), mesh=sl.Mesh(dp=4), backward=False, pending="keep")
    (layout,) = program.output_layouts
    assert layout is not None
    assert layout.is_pending
    report = program.verify()
    assert report.ok
    assert report.outputs[0].layout == layout


def test_a_gradient_that_goes_to_the_largest_element_is_no_false_alarm() -> None:
    """The backward looks for the elements that equal the maximum: shaken apart from it, none would."""

    class Model(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).tanh().amax(1).square().mean()

    x = torch.randn(64, 50, 30)
    assert expanded(Model(30, 4), x, mesh=sl.Mesh(dp=4), loss=lambda out: out, batch="dp").verify().ok


def test_integers_and_bools_are_compared_exactly() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(), x.sum(0), x > 2**40, x.argmax(1)

    program = expanded(fn, torch.arange(24).reshape(8, 3) * 2**39 + 1, mesh=sl.Mesh(dp=4), backward=False)
    report = program.verify()
    assert report.ok
    assert [(each.max_abs_error, each.tolerance) for each in report.outputs] == [(0.0, 0.0)] * 4
    name = names(program, c10d.all_reduce.default)[0]
    wrong = altered(program, lambda graph: off_by_one(graph, name)).verify()
    assert wrong.first_divergence is not None
    assert isinstance(wrong.first_divergence.got, int)
    assert wrong.first_divergence.got == int(str(wrong.first_divergence.expected)) + 1


def off_by_one(graph: torch.fx.Graph, name: str) -> None:
    """Add one to what a reduction returns, within its redistribution."""
    node = next(each for each in graph.nodes if each.name == name)
    with graph.inserting_after(node):
        more = graph.call_function(torch.ops.aten.add.Tensor, (node, 1))
    more.meta = dict(node.meta)
    node.replace_all_uses_with(more, delete_user_cb=lambda user: user is not more)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_tolerance_follows_the_dtype(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = Perceptron(16).to(dtype), torch.randn(16, 16).to(dtype)
    program = expanded(
        model,
        x,
        mesh=sl.Mesh(dp=2, tp=2),
        loss=weighted_in(dtype),
        params=sl.colwise("up", axis="tp") | sl.rowwise("down", axis="tp"),
    )
    report = program.verify()
    report.raise_if_wrong()
    assert {each.tolerance for each in report.outputs} == {32 * torch.finfo(dtype).eps}
    for name in names(program, c10d.all_reduce.default):
        assert not altered(program, bypass(name)).verify().ok


def weighted_in(dtype: torch.dtype) -> object:
    def loss(out: torch.Tensor) -> torch.Tensor:
        return (out * torch.linspace(0.5, 1.5, out.numel(), dtype=dtype).view_as(out)).square().mean()

    return loss


def test_a_step_is_judged_on_what_the_reduction_before_it_gave() -> None:
    """Four products sum to -0.5 in the order of the ranks, and to 0.5 exactly: the step after is not to blame."""
    x, w = torch.tensor([[1e8, 1.0, -1e8, -0.5]]), torch.ones(4, 1)
    program = expanded(
        lambda x, w: (x @ w) > 0,
        x,
        w,
        mesh=sl.Mesh(tp=4),
        batch=None,
        backward=False,
        inputs={"x": "1 4/tp", "w": "4/tp 1"},
    )
    assert program.verify().divergences == ()


@pytest.mark.parametrize("rows", [1, 3, 5, 10])
def test_uneven_and_empty_shards_are_proved(rows: int) -> None:
    program = expanded(Perceptron(3), torch.randn(rows, 3), mesh=sl.Mesh(dp=4), loss=weighted)
    report = program.verify()
    report.raise_if_wrong()


def test_zeros_stay_within_rounding_of_zero() -> None:
    program = expanded(nn.Linear(4, 2), torch.zeros(8, 4), mesh=sl.Mesh(dp=4))
    report = program.verify()
    assert report.ok


# --- ranks --------------------------------------------------------------------------------------


def test_only_the_ranks_that_are_asked_for_are_reported_on() -> None:
    program = perceptron()
    (name,) = names(program, c10d.all_reduce.default, "resolve:grad(up.bias)")
    wrong = altered(program, bypass(name))
    report = sl.prove.verify(wrong, ranks=[3])  # type: ignore[arg-type]
    assert report.ranks == (3,)
    assert report.first_divergence is not None
    assert report.first_divergence.rank == 3


@pytest.mark.parametrize("ranks", [[4], [-1], [0, 99]])
def test_a_rank_that_the_mesh_lacks_is_refused(ranks: list[int]) -> None:
    with pytest.raises(MeshError, match="has no rank") as caught:
        perceptron().verify(ranks=ranks)
    assert caught.value.hint == "ranks run from 0 to 3"


def test_many_ranks_are_only_run_if_that_is_said() -> None:
    program = expanded(lambda x: x.sum(0), torch.randn(72, 2), mesh=sl.Mesh(dp=72), backward=False)
    with pytest.raises(ArgumentError, match="dp=72 has 72 ranks") as caught:
        program.verify()
    assert str(caught.value.hint).startswith("ranks=range(72)")
    report = program.verify(ranks=range(72))
    assert report.ok
    assert len(report.ranks) == 72


def test_an_operator_of_many_operands_is_judged_in_linear_time() -> None:
    def stacked(*rows: torch.Tensor) -> torch.Tensor:
        return torch.stack(rows).sum(0)

    program = sl.rebuild(sl.expand(sl.trace(stacked, *torch.randn(800, 4), backward=False), sl.Mesh(dp=2), batch="dp"))
    before = time.process_time()
    program.verify().raise_if_wrong()
    assert time.process_time() - before < 20


def test_no_ranks_at_all_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no rank to report on"):
        perceptron().verify(ranks=[])


# --- what is left as it was ---------------------------------------------------------------------


def test_random_numbers_parameters_and_gradients_are_left_as_they_were() -> None:
    model, x = Perceptron(4), torch.randn(8, 4)
    program = expanded(model, x, mesh=sl.Mesh(dp=2), loss=weighted)
    before = [each.detach().clone() for each in model.parameters()]
    state = torch.get_rng_state()
    assert program.verify().ok
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(now, then) for now, then in zip(model.parameters(), before, strict=True))
    assert all(each.grad is None for each in model.parameters())
    assert torch.is_grad_enabled()


def test_present_values_of_parameters_are_used() -> None:
    model = nn.Linear(2, 1, bias=False)
    program = expanded(model, torch.ones(4, 2), mesh=sl.Mesh(dp=2), backward=False)
    with torch.no_grad():
        model.weight.fill_(float("nan"))
    report = program.verify()
    assert report.ok
    (name,) = [step.name for step in program.expansion.steps if step.op.startswith("aten.mm")]
    wrong = altered(program, lambda graph: plus_one(graph, name)).verify()
    assert wrong.ok, "nan + 1 is nan"


def plus_one(graph: torch.fx.Graph, name: str) -> None:
    node = next(each for each in graph.nodes if each.meta.get("spmd_value") == name)
    with graph.inserting_after(node):
        more = graph.call_function(torch.ops.aten.add.Tensor, (node, 1))
    more.meta = dict(node.meta)
    del node.meta["spmd_value"]
    node.replace_all_uses_with(more, delete_user_cb=lambda user: user is not more)


def test_a_process_group_of_the_users_stays_and_works() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        assert perceptron().verify().ok
        assert not altered(perceptron(), bypass(names(perceptron(), c10d.all_reduce.default)[0])).verify().ok
        assert dist.get_world_size() == 2
        dist.all_reduce(torch.ones(2))
    finally:
        dist.destroy_process_group()


# --- the report ---------------------------------------------------------------------------------


def test_a_right_program_raises_nothing_and_says_so() -> None:
    report = attention().verify()
    report.raise_if_wrong()
    assert repr(report).startswith("every node equal on 4 ranks")
    assert report.first_divergence is None
    assert report.mesh == sl.Mesh(dp=2, tp=2)
    assert [each.name for each in report.outputs] == [each.name for each in attention().expansion.traced.outputs]
    with pytest.raises(FrozenInstanceError):
        report.ok = False  # type: ignore[misc]


def test_a_wrong_program_raises_and_names_step_line_rank_index_values_and_layouts() -> None:
    program = perceptron()
    (name,) = names(program, c10d.all_reduce.default, "resolve:grad(up.bias)")
    report = altered(program, bypass(name)).verify()
    assert not repr(report).startswith("every node equal")
    with pytest.raises(VerificationError) as caught:
        report.raise_if_wrong()
    first = report.first_divergence
    assert first is not None
    assert first.step is not None
    text = str(caught.value)
    for part in (
        "resolve:grad(up.bias)",
        "on rank 0",
        f"at {list(first.index or ())}",
        f"expected {first.expected}, got {first.got}",
        f"line: {first.step.source}",
        "f32[32/tp]{sum: dp} -> f32[32/tp]",
        "try: look at expansion['resolve:grad(up.bias)']",
    ):
        assert part in text


def test_an_output_that_differs_although_every_step_is_right_is_named() -> None:
    right = perceptron().verify()
    first, *others = right.outputs
    off = replace(first, max_scaled_error=1e-3, ok=False)
    report = replace(right, ok=False, outputs=(off, *others))
    with pytest.raises(VerificationError) as caught:
        report.raise_if_wrong()
    assert (
        caught.value.what == f"output {first.name} differs from eager PyTorch: scaled error 1.0e-03, 3.8e-06 is allowed"
    )
    assert caught.value.layouts == {first.name: first.layout}
    assert "does rounding decide what it returns?" in str(caught.value.hint)


def set_items(x: torch.Tensor) -> torch.Tensor:
    z = torch.zeros_like(x)
    z[:, 0] = x[:, 1]
    return z


@pytest.mark.parametrize("placing", ["a/x b", "a b/x", "a b", "a b{sum: x}"])
@pytest.mark.parametrize(
    "program",
    [
        set_items,
        lambda x: torch.empty_like(x) * 2,
        lambda x: x.new_empty(3, 4) + x.new_empty(4),
        lambda x: torch.empty(5, 6, dtype=torch.int64) + x.long(),
        lambda x: torch.quantile(x, 0.3),
        lambda x: torch.atanh(x * 0.1),
    ],
)
def test_memory_that_nobody_has_written_is_the_same_everywhere(program: Any, placing: str) -> None:
    x = torch.randn(5, 6, requires_grad=True)
    expansion = sl.spmd_expand(program, x, mesh=sl.Mesh(x=4), inputs=[placing])
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    expansion.program.verify().raise_if_wrong()
    assert before == (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
