"""Losses, tangents, new values and gradients; and that all of them equal eager PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from spmd_lab import trace
from spmd_lab.trace import trace_for_autograd
from tests.trace.programs import GPT, Normed, check, example_values, names, output_names


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(4, 3)


def test_the_loss_comes_first_and_its_tangent_is_one(x: torch.Tensor) -> None:
    traced = check(trace(nn.Linear(3, 2), x, loss=lambda out: out.square().mean()))
    assert [(each.name, each.role, each.of) for each in traced.outputs] == [
        ("loss", "loss", None),
        ("out", "output", None),
        ("grad(weight)", "gradient", "weight"),
        ("grad(bias)", "gradient", "bias"),
    ]
    assert names(traced, "tangent") == []
    (tangent,) = [node for node in traced.graph_module.graph.nodes if "ones_like" in str(node.target)]
    assert traced.phase(tangent) == "backward"
    loss = traced.graph_module.graph.output_node().args[0][0]
    assert tangent.args == (loss,)
    assert traced.source(tangent) == traced.source(loss)


def test_without_a_loss_every_differentiable_output_has_a_tangent(x: torch.Tensor) -> None:
    traced = check(trace(lambda x, w: (x @ w, x + 1, (w * 2).sum()), x, torch.randn(3, 2, requires_grad=True)))
    assert names(traced, "tangent") == ["tangent(out[0])", "tangent(out[2])"]
    assert [each.global_shape for each in traced.inputs if each.role == "tangent"] == [(4, 2), ()]


def test_forward_only(x: torch.Tensor) -> None:
    traced = check(trace(nn.Linear(3, 2), x, backward=False))
    assert (names(traced), output_names(traced)) == (["weight", "bias", "input"], ["out"])
    with_loss = check(trace(nn.Linear(3, 2), x, loss=lambda out: out.sum(), backward=False))
    assert output_names(with_loss) == ["loss", "out"]
    assert {traced.phase(node) for node in traced.op_nodes} == {"forward"}


def test_where_nothing_requires_a_gradient_there_is_no_backward(x: torch.Tensor) -> None:
    traced = check(trace(lambda x: x * 2, x, loss=lambda out: out.sum()))
    assert output_names(traced) == ["loss", "out"]
    frozen = nn.Linear(3, 2).requires_grad_(False)
    frozen.bias.requires_grad_()
    assert output_names(check(trace(frozen, x))) == ["out", "grad(bias)"]


def test_tracing_does_not_depend_on_the_grad_mode_around_it(x: torch.Tensor) -> None:
    with torch.no_grad():
        assert output_names(trace(nn.Linear(3, 2), x)) == ["out", "grad(weight)", "grad(bias)"]


def test_inputs_that_require_a_gradient_have_one(x: torch.Tensor) -> None:
    x.requires_grad_()
    assert output_names(check(trace(lambda x, y: x * y, x, x.detach()))) == ["out", "grad(x)"]


def test_a_gradient_that_is_none_keeps_its_place(x: torch.Tensor) -> None:
    u, v = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    traced = check(trace(lambda x, u, v: x * v, x, u, v))
    assert [(each.name, each.global_shape) for each in traced.outputs] == [
        ("out", (4, 3)), ("grad(u)", None), ("grad(v)", (3,)),
    ]  # fmt: skip
    assert traced.graph_module(*example_values(traced))[1] is None
    no_backward = check(trace(lambda x, u: x * 2, x, u))
    assert [(each.name, each.global_shape) for each in no_backward.outputs] == [("out", (4, 3)), ("grad(u)", None)]


def test_batch_norm_gives_new_values(x: torch.Tensor) -> None:
    traced = check(trace(Normed(), x, loss=lambda out: out.square().mean()))
    new = [each for each in traced.outputs if each.role == "new value"]
    assert [(each.name, each.of, each.dtype) for each in new] == [
        ("new(bn.running_mean)", "bn.running_mean", torch.float32),
        ("new(bn.running_var)", "bn.running_var", torch.float32),
        ("new(bn.num_batches_tracked)", "bn.num_batches_tracked", torch.int64),
    ]
    model = Normed()
    model.load_state_dict(
        {each.name: value for each, value in zip(traced.inputs, traced.values, strict=True) if each.role != "input"}
    )
    model(x)
    values = dict(zip(output_names(traced), traced.graph_module(*traced.values), strict=True))
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(values[f"new({name})"], buffer)


def test_an_assigned_buffer_gives_a_new_value(x: torch.Tensor) -> None:
    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean = self.mean * 0.9 + x.mean(0) * 0.1
            return x - self.mean

    model = Running()
    kept = model.mean
    assert output_names(check(trace(model, x))) == ["out", "new(mean)"]
    assert model.mean is kept
    assert torch.equal(kept, torch.zeros(3))


def test_an_input_that_is_changed_in_place_gives_a_new_value(x: torch.Tensor) -> None:
    def program(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        x[0].add_(v)
        return (x * 2).sum()

    v = torch.randn(3)
    assert output_names(check(trace(program, x, v))) == ["out", "new(x)"]
    v.requires_grad_()
    traced = check(trace(program, x, v))
    assert names(traced) == ["x", "v", "tangent(out)", "tangent(new(x))"]
    with_loss = check(trace(program, x, v, loss=lambda out: out))
    assert (names(with_loss), output_names(with_loss)) == (["x", "v"], ["loss", "out", "new(x)", "grad(v)"])


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x,
        lambda x: (x, x.view(-1), x.t(), x + 1),
        lambda x: (lambda y: [y, y.view(-1), y[0], y])(x * 2),
        lambda x: (x * 2).expand(2, 4, 3),
        lambda x: x.detach() * x,
        lambda x: torch.autograd.grad((x**3).sum(), x, create_graph=True)[0],
        lambda x: torch.cat([x, x], 0).relu_().chunk(2),
        lambda x: torch.utils.checkpoint.checkpoint(lambda y: y.sin().exp(), x, use_reentrant=False),
        lambda x: x.sort(-1),
        lambda x: functional.layer_norm(x, (3,)).transpose(0, 1).contiguous(),
    ],
)
def test_views_aliases_and_the_rest_have_their_gradients(program, x: torch.Tensor) -> None:
    traced = check(trace(program, x.requires_grad_()))
    assert traced.outputs[-1].name == "grad(x)"
    assert traced.outputs[-1].global_shape == (4, 3)


def test_no_node_is_left_of_what_kept_outputs_apart(x: torch.Tensor) -> None:
    traced = trace(lambda x: (x, x.t(), x * 2), x.requires_grad_())
    assert [str(node.target) for node in traced.op_nodes if traced.phase(node) == "forward"] == [
        "aten.t.default", "aten.mul.Tensor",
    ]  # fmt: skip
    output = traced.graph_module.graph.output_node().args[0]
    assert output[0].op == "placeholder"


def test_a_gpt_with_a_loss() -> None:
    tokens, targets = torch.randint(32, (2, 8)), torch.randint(32, (2, 8))
    traced = check(
        trace(GPT(), tokens, loss=lambda out: functional.cross_entropy(out.flatten(0, 1), targets.flatten()))
    )
    assert names(traced, "input") == ["tokens", "targets"]
    assert len([each for each in traced.outputs if each.role == "gradient"]) == len(names(traced, "parameter"))


def test_the_graph_equals_the_module_and_its_own_backward() -> None:
    """The reference is ours; this compares the graph with nothing of ours in between."""
    model, tokens, targets = GPT(), torch.randint(32, (2, 8)), torch.randint(32, (2, 8))
    traced = trace(model, tokens, loss=lambda out: functional.cross_entropy(out.flatten(0, 1), targets.flatten()))
    got = dict(zip(output_names(traced), traced.graph_module(*traced.values), strict=True))
    out = model(tokens)
    loss = functional.cross_entropy(out.flatten(0, 1), targets.flatten())
    loss.backward()
    torch.testing.assert_close(got["loss"], loss.detach())
    torch.testing.assert_close(got["out"], out.detach())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(got[f"grad({name})"], parameter.grad)


def test_an_lstm_reads_its_parameters_from_a_list() -> None:
    traced = check(
        trace(nn.LSTM(3, 4, batch_first=True), torch.randn(2, 5, 3), loss=lambda out: out[0].square().mean())
    )
    assert len(names(traced, "parameter")) == 4
    assert names(traced, "input") == ["input"]


def test_random_operators_stay_in_the_graph(x: torch.Tensor) -> None:
    traced = trace(lambda x: functional.dropout(x, 0.5), x.requires_grad_())
    (draw,) = [node for node in traced.op_nodes if torch.Tag.nondeterministic_seeded in node.target.tags]
    assert traced.phase(draw) == "forward"
    torch.manual_seed(3)
    expected = functional.dropout(x, 0.5)
    torch.manual_seed(3)
    torch.testing.assert_close(traced.graph_module(x, torch.ones(4, 3))[0], expected)


def test_the_tangent_of_a_loss_can_be_an_input(x: torch.Tensor) -> None:
    traced = check(trace_for_autograd(nn.Linear(3, 2), [x], {}, lambda out: out.square().mean(), backward=True))
    assert names(traced, "tangent") == ["tangent(loss)"]


def test_operators_with_side_effects_stand_in_the_order_of_the_graph() -> None:
    def program(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.linalg.cholesky(a), torch.linalg.inv(a)

    traced = trace(program, torch.eye(3) * 2)
    ops = [str(node.target) for node in traced.op_nodes]
    assert ops.count("aten._linalg_check_errors.default") == 2
    assert not any("with_effects" in op for op in ops)
    assert [each.role for each in traced.inputs] == ["input"]
    factor, inverse = traced.graph_module(torch.eye(3) * 4)
    assert torch.equal(factor, torch.eye(3) * 2)
    assert torch.equal(inverse, torch.eye(3) / 4)
    with pytest.raises(torch.linalg.LinAlgError):
        traced.graph_module(-torch.eye(3))


@pytest.mark.filterwarnings("error")
def test_what_was_compiled_is_run_as_it_was_written() -> None:
    compiled: list[object] = []

    def backend(graph_module: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        compiled.append(graph_module)
        return graph_module

    inner = torch.nn.Sequential(torch.compile(torch.nn.Linear(3, 2), backend=backend), torch.nn.ReLU())
    traced = trace(inner, torch.ones(4, 3))
    traced.reference.run([*traced.values[:-1], torch.ones(4, 2)])
    assert not compiled
    inner(torch.ones(4, 3))
    assert compiled


def test_what_was_compiled_is_traced_as_it_was_written() -> None:
    linear = torch.nn.Linear(3, 2)
    traced = trace(torch.compile(linear), torch.ones(4, 3))
    assert [each.name for each in traced.inputs[:2]] == ["weight", "bias"]
    inner = torch.nn.Sequential(torch.compile(linear), torch.nn.ReLU())
    assert [str(node.target) for node in trace(inner, torch.ones(4, 3), backward=False).op_nodes] == [
        "aten.t.default",
        "aten.addmm.default",
        "aten.relu.default",
    ]
    function = torch.compile(lambda x: x.sin() * 2)
    assert len(trace(function, torch.ones(4), backward=False).op_nodes) == 2


def test_functional_transforms_inside_a_program_are_traced() -> None:
    def per_row(a: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(lambda row: row.sin().sum())(a)

    def slopes(a: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(torch.func.grad(lambda row: (row**3).sum()))(a)

    a = torch.randn(4, 3)
    for program in (per_row, slopes):
        traced = trace(program, a, backward=False)
        torch.testing.assert_close(traced.graph_module(a)[0], program(a))
