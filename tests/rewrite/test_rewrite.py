"""A program that a user's own passes have changed: what a pass is given, what it may give, and what is told of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import fx, nn

import spmd_lab as sl
from spmd_lab.errors import ArgumentError, RewriteError

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten
c10d = torch.ops._c10d_functional


def build(rows: int = 8) -> sl.Program:
    """Data and tensor parallel, uneven where the rows do not divide."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    params = sl.colwise("0", axis="tp") | sl.rowwise("2", axis="tp")
    traced = sl.trace(model, torch.randn(rows, 4), loss=lambda out: (out * torch.linspace(0.5, 1, 4)).square().sum())
    return sl.rebuild(sl.expand(traced, sl.Mesh(dp=2, tp=2), batch="dp", params=params))


@pytest.fixture(scope="module")
def program() -> sl.Program:
    return build()


def calls(graph: fx.Graph, target: object) -> list[fx.Node]:
    return [node for node in graph.nodes if node.target == target]


def after(node: fx.Node, *call: Any) -> fx.Node:
    """Let an operator run on what a node holds, and everyone read that instead; nothing is said of the new node."""
    target, *rest = call
    with node.graph.inserting_after(node):
        new = node.graph.call_function(target, (node, *rest))
    node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
    return new


def before(node: fx.Node, *call: Any) -> fx.Node:
    """Let a node read what an operator makes of its first argument."""
    target, *rest = call
    with node.graph.inserting_before(node):
        new = node.graph.call_function(target, (node.args[0], *rest))
    node.update_arg(0, new)
    return new


# --- what a pass is given -----------------------------------------------------------------------


def test_a_program_stays_as_it_is_when_another_is_made_of_it(program: sl.Program) -> None:
    text = str(program.graph_module.graph)

    def forget(module: fx.GraphModule) -> None:
        for node in calls(module.graph, c10d.all_reduce.default):
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)

    changed = program.rewrite(forget)
    assert isinstance(changed, sl.Program)
    assert not calls(changed.graph_module.graph, c10d.all_reduce.default)
    assert str(program.graph_module.graph) == text
    assert program.verify().ok
    assert not changed.verify().ok
    assert (changed.input_layouts, changed.output_layouts) == (program.input_layouts, program.output_layouts)
    assert "all_reduce" not in changed.to_text()
    assert "all_reduce" in program.to_text()


def test_a_pass_that_changes_nothing_gives_an_equal_program(program: sl.Program) -> None:
    same = program.rewrite(lambda module: module)
    assert str(same.graph_module.graph) == str(program.graph_module.graph)
    for old, new in zip(program.graph_module.graph.nodes, same.graph_module.graph.nodes, strict=True):
        assert new is not old
        assert new.meta == old.meta
        assert new.meta is not old.meta
    assert same.verify().ok
    assert same.to_text() == program.to_text()


def test_constants_are_copies_too() -> None:
    table = torch.arange(4.0)
    traced = sl.trace(lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]) + table, torch.ones(2, 4), backward=False)
    program = sl.rebuild(sl.expand(traced, sl.Mesh(dp=2)))
    assert calls(program.graph_module.graph, aten.add.Tensor)

    def spoil(module: fx.GraphModule) -> None:
        for node in module.graph.nodes:
            if node.op == "get_attr":
                getattr(module, node.target).zero_()

    program.rewrite(spoil)
    assert program.verify().ok


def test_passes_run_one_after_the_other(program: sl.Program) -> None:
    seen: list[int] = []

    def count(module: fx.GraphModule) -> None:
        seen.append(len(calls(module.graph, aten.clone.default)))

    def copy(module: fx.GraphModule) -> fx.GraphModule:
        after(calls(module.graph, aten.relu.default)[0], aten.clone.default)
        return module

    twice = program.rewrite(copy, copy, count)
    assert seen == [len(calls(twice.graph_module.graph, aten.clone.default))]
    assert seen[0] == len(calls(program.graph_module.graph, aten.clone.default)) + 2
    assert program.rewrite(copy).rewrite(copy).verify().ok


def test_a_pass_runs_once_for_ranks_that_run_the_same_and_when_they_are_asked_for() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    traced = sl.trace(model, torch.randn(8, 4), backward=False)
    shared = sl.rebuild(sl.expand(traced, sl.Mesh(dp=2, tp=2), batch="dp", outputs={"out": "b/dp d/tp"}))
    assert shared.rank_axes == {"tp"}
    seen: list[fx.GraphModule] = []
    changed = shared.rewrite(seen.append)
    assert seen == [changed.graph_module]
    assert changed.for_rank(0) is changed.for_rank(2) is changed.graph_module
    assert len(seen) == 1
    assert changed.for_rank(1) is changed.for_rank(3) is seen[1]
    assert len(seen) == 2


class WithName:
    def __call__(self, module: fx.GraphModule, *, rank: int) -> None:
        module.meta["rank"] = rank


def by_position(module: fx.GraphModule, place: int) -> None:
    module.meta["rank"] = place


def by_name(module: fx.GraphModule, rank: int = -1) -> None:
    module.meta["rank"] = rank


def with_an_option(module: fx.GraphModule, factor: float = 2.0) -> None:
    module.meta["rank"] = factor


@pytest.mark.parametrize("each", [WithName(), by_position, by_name])
def test_a_pass_that_takes_the_rank_is_given_it(program: sl.Program, each: Callable[..., None]) -> None:
    changed = program.rewrite(each)
    assert [changed.for_rank(rank).meta["rank"] for rank in range(4)] == [0, 1, 2, 3]
    assert changed.rank_axes == {"dp", "tp"}
    assert changed.verify().ok


@pytest.mark.parametrize("each", [with_an_option, partial(by_position, place=2.0)])
def test_an_option_of_a_pass_is_not_the_rank(program: sl.Program, each: Callable[..., None]) -> None:
    changed = program.rewrite(each)
    assert {changed.for_rank(rank).meta["rank"] for rank in range(4)} == {2.0}


# --- what a pass may not do ---------------------------------------------------------------------


def raises(module: fx.GraphModule) -> None:
    raise KeyError("mul")


def returns_a_graph(module: fx.GraphModule) -> Any:
    return module.graph


def reads_too_early(module: fx.GraphModule) -> None:
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    nodes[0].update_arg(0, nodes[-1])


def takes_more(module: fx.GraphModule) -> None:
    first = next(iter(module.graph.nodes))
    with module.graph.inserting_before(first):
        module.graph.placeholder("more")


def gives_less(module: fx.GraphModule) -> None:
    output = next(iter(reversed(module.graph.nodes)))
    output.args = (tuple(output.args[0])[1:],)


@pytest.mark.parametrize(
    ("each", "text"),
    [
        (raises, "pass raises raises KeyError ('mul') on the graph of rank 0"),
        (returns_a_graph, "pass returns_a_graph makes a Graph of the graph of rank 0"),
        (reads_too_early, "pass reads_too_early breaks"),
        (takes_more, "pass takes_more leaves 6 inputs and 6 outputs of 5 and 6 in the graph of rank 0"),
        (gives_less, "pass gives_less leaves 5 inputs and 5 outputs of 5 and 6 in the graph of rank 0"),
    ],
)
def test_a_pass_that_makes_no_program_is_named(program: sl.Program, each: Callable[..., Any], text: str) -> None:
    with pytest.raises(RewriteError) as caught:
        program.rewrite(each)
    assert str(caught.value).startswith(text)
    assert (caught.value.pass_name, caught.value.rank) == (each.__name__, 0)
    assert caught.value.hint


def test_the_rank_whose_graph_breaks_a_pass_is_named(program: sl.Program) -> None:
    def picky(module: fx.GraphModule, rank: int) -> None:
        if rank == 3:
            raise ValueError("not this one")

    changed = program.rewrite(picky)
    with pytest.raises(RewriteError, match=r"pass .*picky raises ValueError \(not this one\) on the graph of rank 3"):
        changed.verify()


def test_the_cause_of_an_error_is_kept(program: sl.Program) -> None:
    with pytest.raises(RewriteError) as caught:
        program.rewrite(raises)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("given", ["bucket_gradients", 3, None])
def test_what_is_no_pass_is_refused(program: sl.Program, given: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        program.rewrite(given)
    assert "a function from GraphModule to GraphModule" in str(caught.value)


# --- nodes that a pass adds ---------------------------------------------------------------------


def test_what_is_added_behind_a_value_belongs_to_the_step_that_makes_it(program: sl.Program) -> None:
    def double(module: fx.GraphModule) -> None:
        after(calls(module.graph, aten.relu.default)[0], aten.mul.Tensor, 2.0)

    changed = program.rewrite(double)
    first = changed.verify().first_divergence
    assert first is not None
    assert first.step is program.expansion.step("relu")
    assert {each.step for each in changed.verify().divergences} == {first.step}


def test_what_is_added_before_a_redistribution_belongs_to_that(program: sl.Program) -> None:
    """What is added up afterwards must not be rectified before."""

    def rectify(module: fx.GraphModule) -> None:
        before(calls(module.graph, c10d.reduce_scatter_tensor.default)[0], aten.relu.default)

    first = program.rewrite(rectify).verify().first_divergence
    assert first is not None
    assert first.step is program.expansion.step("pow_1")


def test_what_is_added_before_one_of_several_readers_belongs_to_that(program: sl.Program) -> None:
    readers = [user.meta["spmd_step"] for user in calls(program.graph_module.graph, aten.relu.default)[0].users]
    assert len(set(readers)) > 1
    for position, step in enumerate(readers):

        def double(module: fx.GraphModule, position: int = position) -> None:
            node = calls(module.graph, aten.relu.default)[0]
            reader = list(node.users)[position]
            with module.graph.inserting_before(reader):
                new = module.graph.call_function(aten.mul.Tensor, (node, 2.0))
            reader.replace_input_with(node, new)

        first = program.rewrite(double).verify().first_divergence
        assert first is not None
        assert first.step is program.expansion.step(step)


def test_what_is_added_before_an_output_belongs_to_it(program: sl.Program) -> None:
    def double(module: fx.GraphModule) -> None:
        output = next(iter(reversed(module.graph.nodes)))
        gradient = output.args[0][2]
        with module.graph.inserting_before(output):
            new = module.graph.call_function(aten.mul.Tensor, (gradient, 2.0))
        output.replace_input_with(gradient, new)

    first = program.rewrite(double).verify().first_divergence
    assert first is not None
    assert first.step is not None
    assert first.step.name == f"resolve:{program.expansion.traced.outputs[2].name}"


def test_added_nodes_show_with_the_line_of_their_step(program: sl.Program) -> None:
    changed = program.rewrite(
        lambda module: after(calls(module.graph, aten.relu.default)[0], aten.clone.default) and None
    )
    (new,) = [node for node in changed.graph_module.graph.nodes if node.target is aten.clone.default][:1]
    step = program.expansion.step("relu")
    assert (new.meta["spmd_step"], new.meta["source"], new.meta["phase"]) == ("relu", step.source, step.phase)
    assert new.meta["spmd_value"] == "relu"


# --- right passes are proved right --------------------------------------------------------------


def packed(shapes: dict[str, tuple[int, ...]], module: fx.GraphModule) -> None:
    """Reduce gradients over ``dp`` together: flat, one behind the other, as buckets are."""
    graph = module.graph
    output = next(iter(reversed(graph.nodes)))
    returned = [node for node in output.all_input_nodes if node.target is c10d.wait_tensor.default]
    waits = [wait for wait in returned if wait.args[0].args[1:] == ("sum", "dp")]
    reductions = [wait.args[0] for wait in waits]
    with graph.inserting_before(output):
        flat = [graph.call_function(aten.reshape.default, (node.args[0], [-1])) for node in reductions]
        bucket = graph.call_function(aten.cat.default, (flat,))
        total = graph.call_function(c10d.all_reduce.default, (bucket, "sum", "dp"))
        whole = graph.call_function(c10d.wait_tensor.default, (total,))
        start = 0
        for node, wait in zip(reductions, waits, strict=True):
            shape = shapes[str(node.meta["spmd_step"])]
            stop = start + torch.Size(shape).numel()
            part = graph.call_function(aten.slice.Tensor, (whole, 0, start, stop))
            output.replace_input_with(wait, graph.call_function(aten.reshape.default, (part, list(shape))))
            start = stop
    for node, wait in zip(reductions, waits, strict=True):
        graph.erase_node(wait)
        graph.erase_node(node)


def test_a_bucket_of_gradients_is_proved_right(program: sl.Program) -> None:
    outputs = zip(program.expansion.traced.outputs, program.output_layouts, strict=True)
    shapes = {f"resolve:{output.name}": layout.local_shape(0) for output, layout in outputs if layout is not None}
    changed = program.rewrite(partial(packed, shapes))
    count = len(calls(program.graph_module.graph, c10d.all_reduce.default))
    assert len(calls(changed.graph_module.graph, c10d.all_reduce.default)) == count - 2
    changed.verify().raise_if_wrong()

    def without_its_sum(module: fx.GraphModule) -> None:
        bucket = next(node for node in calls(module.graph, c10d.all_reduce.default) if "spmd_step" not in node.meta)
        bucket.replace_all_uses_with(bucket.args[0])

    report = changed.rewrite(without_its_sum).verify()
    assert not report.ok
    wrong = {each.step.name for each in report.divergences if each.step is not None}
    assert wrong == {"resolve:grad(0.weight)", "resolve:grad(0.bias)", "resolve:grad(2.weight)"}


def test_a_rewritten_program_is_saved_and_loaded(program: sl.Program, tmp_path: Any) -> None:
    changed = program.rewrite(
        lambda module: after(calls(module.graph, aten.relu.default)[0], aten.clone.default) and None
    )
    loaded = sl.load(changed.save(tmp_path / "changed.spmd"))
    for rank in range(4):
        assert str(loaded.for_rank(rank).graph) == str(changed.for_rank(rank).graph)


def test_an_uneven_program_is_rewritten_rank_by_rank() -> None:
    uneven = build(rows=3)
    changed = uneven.rewrite(
        lambda module: after(calls(module.graph, aten.relu.default)[0], aten.relu.default) and None
    )
    changed.verify().raise_if_wrong()
    assert changed.for_rank(0) is not changed.for_rank(2)


# --- how a pass writes its calls ----------------------------------------------------------------


def by_name(module: fx.GraphModule) -> None:
    """Give every argument of every operator by name."""
    for node in module.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            names = [each.name for each in node.target._schema.arguments]
            node.kwargs = dict(zip(names, node.args, strict=False)) | node.kwargs
            node.args = ()


def test_arguments_may_be_given_by_name(program: sl.Program) -> None:
    named = program.rewrite(by_name)
    assert str(named.collectives) == str(program.collectives)
    assert str(named.graph_module.code) == str(program.graph_module.code)
    named.verify().raise_if_wrong()
    ours = ("lean", "share", "overlap", "bucket")
    assert str(named.rewrite(*ours).graph_module.code) == str(program.rewrite(*ours).graph_module.code)


def test_what_is_transposed_otherwise_is_not_transposed_back() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).transpose(1, 2)

    program = sl.spmd_expand(f, torch.randn(2, 2, 2), mesh=sl.Mesh(dp=2), backward=False).program
    program.rewrite(by_name, "lean").verify().raise_if_wrong()


def test_a_collective_without_a_group_is_refused(program: sl.Program) -> None:
    def without_group(module: fx.GraphModule) -> None:
        node = calls(module.graph, c10d.all_reduce.default)[0]
        node.args = node.args[:2]

    with pytest.raises(RewriteError, match="without_group leaves a call of _c10d_functional"):
        program.rewrite(without_group)
