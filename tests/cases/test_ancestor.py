"""What the ancestor of this project could do, and where its limits were: all of it goes, equal to the single device.

Its training on real processes stands in ``tests/run/training_cases.py``, with optimizers outside the program: stacks of
layers and perceptrons under SGD, with momentum, foreach, Adam and fused Adam, replicated and sharded, each equal to
DDP; a module under DDP before a distributed one; a buffer with a gradient. That neither an import nor a trace leaves
anything behind in torch is in ``tests/trace/test_left_as_found.py`` and ``tests/run/test_left_as_found.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard

import spmd_lab as sl
from tests.cases.on_ranks import agree
from tests.cases.programs import weighted

if TYPE_CHECKING:
    from collections.abc import Callable

TWO = sl.Mesh(dp=2)
ROWS, WHOLE = [Shard(0)], [Replicate()]
aten = torch.ops.aten


def waits(expansion: sl.Expansion) -> int:
    nodes = expansion.program.graph_module.graph.nodes
    return sum(node.target is torch.ops._c10d_functional.wait_tensor.default for node in nodes)


# --- its tests ---


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return weighted(torch.cat((self.w, self.w), 0))


class Summed(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return weighted(sum(part(x) for part in self.parts))  # type: ignore[arg-type]


class InARow(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.Sequential(*parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return weighted(self.parts(x))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[object]]] = {
    "an input that nobody reads": (Twice, (2, 4), WHOLE),
    "layer norm": (lambda: InARow(nn.LayerNorm(5)), (4, 5), ROWS),
    "two layers": (lambda: InARow(nn.Linear(10, 10), nn.Linear(10, 10)), (2, 10), ROWS),
    "two layers side by side": (lambda: Summed(nn.Linear(10, 10), nn.Linear(10, 10)), (2, 10), ROWS),
    "ten layers": (lambda: InARow(*(m for _ in range(10) for m in (nn.Linear(20, 20), nn.ReLU()))), (8, 20), ROWS),
}


class Gathered(nn.Module):
    """Many layers of one input, along dim 1; and the first column of what a stack has."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(3, 1) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([part(x) for part in self.parts], dim=1)
        return weighted(joined) + weighted(torch.stack([joined, joined], dim=1)[:, :1])


@pytest.mark.parametrize("params", [{}, {"**": ROWS}], ids=["replicated", "sharded"])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_gradients(name: str, params: dict[str, object]) -> None:
    build, shape, placement = MODELS[name]
    torch.manual_seed(0)
    agree(build(), (torch.randn(shape),), TWO, [placement], params, trains=True)


def test_a_hundred_layers_put_together() -> None:
    agree(Gathered(100), (torch.randn(2, 3),), TWO, [ROWS], trains=True)


def test_shapes_that_a_trace_bakes_in() -> None:
    """Tensors in a list and in a dict, expanded to the shape of another."""

    class Baked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.b = nn.Parameter(torch.randn(5, 10)), nn.Parameter(torch.randn(5))

        def forward(self, x: torch.Tensor, ys: list[torch.Tensor], *, more: dict[str, torch.Tensor]) -> torch.Tensor:
            x = x.permute(0, 2, 1)
            return F.linear(x + ys[0].expand(x.shape) + more["value"].expand(x.shape), self.w, self.b)

    x, y, z = torch.randn(2, 10, 80), torch.randn(2, 80, 10), torch.randn(2, 80, 10)
    expansion = sl.spmd_expand(
        Baked(), x, [y], kwargs={"more": {"value": z}}, mesh=TWO, batch="dp", loss=lambda out: weighted(out)
    )
    assert [each.name for each in expansion.traced.inputs if each.role == "input"] == ["x", "ys[0]", "more.value"]
    assert all(str(expansion.layout(name)).startswith("f32[2/dp") for name in ("x", "ys[0]", "more.value"))
    expansion.program.verify().raise_if_wrong()


class Covering(nn.Module):
    """What its operator tests went through, in one program: tables, positions made inside, constants, a likelihood."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(10, 8), nn.Embedding(4, 8)

    def forward(self, tokens: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.words(tokens) + self.places(torch.arange(4)) + torch.full((8,), 0.5) + torch.tensor(2.0)
        scores = F.log_softmax(x.mean(1), dim=1)
        return F.nll_loss(scores, wanted), torch.stack([scores, scores * 2], dim=1)[:, :1]


@pytest.mark.parametrize("table", [WHOLE, ROWS], ids=["replicated", "sharded"])
def test_tables_positions_and_constants(table: list[object]) -> None:
    tokens, wanted = torch.arange(8).reshape(2, 4), torch.tensor([3, 7])
    agree(Covering(), (tokens, wanted), TWO, [ROWS, ROWS], {"words.weight": table}, trains=True)


def test_a_layer_without_bias_needs_one_reduction() -> None:
    model = InARow(nn.Linear(10, 10, bias=False))
    expansion = agree(model, (torch.randn(4, 10),), TWO, [ROWS], trains=True)
    gradients = [each for each in expansion.collectives if each.step.startswith("resolve:grad")]
    assert [each.kind for each in gradients] == ["all_reduce"]


def test_a_layer_norm_leaves_its_gradients_pending_but_that_of_its_input() -> None:
    """One step, and three layouts."""
    model, x = nn.LayerNorm(16), torch.randn(8, 16, requires_grad=True)
    expansion = sl.spmd_expand(model, x, mesh=TWO, batch="dp", loss=weighted, pending="keep")
    (step,) = (each for each in expansion.steps if each.op == "aten.native_layer_norm_backward.default")
    assert [str(layout) for layout in step.outputs] == ["f32[8/dp, 16]", "f32[16]{sum: dp}", "f32[16]{sum: dp}"]
    assert expansion.program.output_layouts[0] is not None
    assert expansion.program.output_layouts[0].is_pending
    expansion.program.verify().raise_if_wrong()


class Perceptron(nn.Module):
    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 18, bias=bias), nn.Linear(18, 6, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu())


@pytest.mark.parametrize(("models", "bias", "reductions"), [(2, True, 2), (1, False, 1)])
def test_columns_then_rows_reduce_once_each(models: int, bias: bool, reductions: int) -> None:
    model = nn.Sequential(*(Perceptron(bias=bias) for _ in range(models)))
    params = sl.colwise("**.up", axis="tp") | sl.rowwise("**.down", axis="tp")
    expansion = sl.spmd_expand(model, torch.randn(10, 12)[:, :6], mesh=sl.Mesh(tp=2), params=params, backward=False)
    assert [each.kind for each in expansion.collectives] == ["all_reduce"] * reductions
    assert waits(expansion) == reductions
    expansion.program.verify().raise_if_wrong()


def test_columns_and_a_batch_norm_gather_at_most_once() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    params = sl.colwise("0", axis="tp") | {"1.running_*": "c/tp"}
    outputs = {"out": "b c"}
    traced = sl.trace(model, torch.randn(7, 3), backward=False)
    expansion = sl.expand(traced, sl.Mesh(tp=2), params=params, outputs=outputs)
    assert [each.kind for each in expansion.collectives] == ["all_gather"]
    assert waits(expansion) == len(expansion.collectives)
    expansion.program.verify().raise_if_wrong()


@pytest.mark.parametrize("axes", [{"a": 2, "b": 2}, {"a": 2, "b": 2, "c": 2}], ids=["2x2", "2x2x2"])
def test_collectives_along_every_axis(axes: dict[str, int]) -> None:
    """Reduced, gathered, scattered and exchanged along each; of other numbers than those that were traced."""
    mesh, x = sl.Mesh(**axes), torch.randn(8, 8, 8)
    for axis in axes:
        traced = sl.trace(lambda x: (x * 1, x * 1, x * 1, x.sum(0)), x + 1, backward=False)
        expansion = sl.expand(
            traced,
            mesh,
            inputs={"x": f"i/{axis} j k"},
            outputs={"out[0]": "i j k", "out[1]": f"i j/{axis} k", "out[2]": f"i/{axis} j k", "out[3]": f"j/{axis} k"},
        )
        kinds = {each.kind for each in expansion.collectives}
        assert kinds == {"all_gather", "all_to_all", "reduce_scatter"}
        assert {each.axes for each in expansion.collectives} == {(axis,)}
        expansion.program.verify([x]).raise_if_wrong()


@torch.library.custom_op("spmd_lab_cases::opaque", mutates_args=())
def opaque(x: torch.Tensor) -> torch.Tensor:
    """What no trace can look into: it asks for the values of its data."""
    return x * 2 if float(x.detach().reshape(-1)[0]) > -1e9 else x


@opaque.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


opaque.register_autograd(lambda _, grad: opaque(grad))


class Opaque(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return opaque(x)


def test_a_module_that_cannot_be_traced_becomes_an_operator_with_a_rule() -> None:
    class Untraceable(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.sum() > 0 else x

    x = torch.randn(4, 10)
    with pytest.raises(sl.SpmdLabError, match=r"custom operator \(torch.library\)"):
        sl.spmd_expand(nn.Sequential(nn.Linear(10, 10), Untraceable()), x, mesh=TWO, batch="dp")
    model = InARow(nn.Linear(10, 10), Opaque(), nn.Linear(10, 10), nn.ReLU())
    rule = sl.register_rule(opaque, ["b/* d -> b/* d", "b d/* -> b d/*"], example=(x,))
    try:
        expansion = agree(model, (x,), TWO, [ROWS], trains=True)
    finally:
        rule.remove()
    assert [each.fallback for each in expansion.steps if "opaque" in each.op] == [None, None]


# --- its limits ---


def test_tensor_keywords_are_redistributed() -> None:
    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, torch.tensor([0, 1, 2, 1]), weight=weight)

    agree(program, (torch.randn(4, 3, requires_grad=True), torch.rand(3)), TWO, [ROWS, ROWS], trains=True)


def test_one_tensor_can_be_needed_in_two_layouts() -> None:
    expansion = agree(lambda x: x @ x, (torch.randn(4, 4),), TWO, [ROWS])
    (step,) = (each for each in expansion.steps if each.op == "aten.mm.default")
    first, second = step.operands
    assert first.name == second.name == "x"
    assert first.need != second.need


def test_lists_of_one_and_tuples_with_none() -> None:
    def program(x: torch.Tensor) -> tuple[Any, ...]:
        (alone,) = torch.split(x, 4)
        return [alone * 2], None, {"more": (x.sum(0), None)}

    traced = sl.trace(program, torch.randn(4, 3), backward=False)
    expansion = sl.expand(traced, TWO, batch="dp")
    expansion.program.verify().raise_if_wrong()
    agree(lambda x: torch.cat([x]), (torch.randn(4, 3),), TWO, [ROWS])


def test_a_backward_that_returns_nothing_for_some() -> None:
    norm = nn.LayerNorm(6)
    norm.weight.requires_grad_(False)
    agree(InARow(nn.Linear(6, 6), norm), (torch.randn(4, 6),), TWO, [ROWS], trains=True)


def test_constants_and_tensors_made_of_nothing() -> None:
    table = torch.arange(6.0)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + table + torch.arange(6) + torch.ones(6) + torch.tensor(1.5)

    agree(program, (torch.randn(4, 6),), TWO, [[Shard(1)]])


@pytest.mark.parametrize("kind", ["sum", "avg", "max"])
def test_pending_outputs_on_two_axes_are_each_their_own_step(kind: str) -> None:
    """And several of them do not meet."""
    mesh, x, y = sl.Mesh(a=2, b=2), torch.randn(4, 4), torch.randn(4, 4)
    places = [Partial(kind), Partial(kind)]
    traced = sl.trace(lambda x, y: (x.clone(), y.clone(), x.flip(0)), x, y, backward=False)
    expansion = sl.expand(traced, mesh, inputs=[places, places])
    assert [each.name for each in expansion.steps if each.op == "resolve"] == [f"resolve:out[{i}]" for i in range(3)]
    expansion.program.verify().raise_if_wrong()


@pytest.mark.parametrize("shape", [(), (1,), (5,), (5, 3)], ids=str)
def test_inputs_of_any_shape_lie_where_they_are_said_to(shape: tuple[int, ...]) -> None:
    """Numbers stay numbers, and rows need not divide."""
    for placement in [WHOLE] if not shape else [WHOLE, ROWS]:
        agree(lambda x: (x * 2, x.sum()), (torch.randn(shape),), TWO, [placement])


def test_parameters_and_buffers_are_known_by_name() -> None:
    """Two that share memory are one; a buffer is no input; every layer can lie in a way of its own."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
            self.two.weight = self.one.weight
            self.register_buffer("shift", torch.randn(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return weighted(self.two(self.one(x) + self.shift))

    params: dict[str, object] = {"one.weight": "o/dp i", "two.bias": "o/dp", "shift": "d/dp"}
    expansion = agree(Shared(), (torch.randn(4, 4),), TWO, [ROWS], params, trains=True)
    roles = {each.name: each.role for each in expansion.traced.inputs}
    assert roles["shift"] == "buffer"
    assert sum("weight" in name for name in roles) == 1


def test_gradients_are_those_of_the_mean_of_all_rows() -> None:
    model = nn.Linear(3, 2)
    x, wanted = torch.randn(5, 3), torch.randn(5, 2)

    def program(x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(model(x), wanted)

    agree(program, (x.requires_grad_(), wanted), TWO, [ROWS, ROWS], trains=True)


def test_nothing_is_computed_or_sent_to_learn_a_layout() -> None:
    """A model too large for any memory expands; the process has no group afterwards either."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(200_000, 200_000), nn.ReLU(), nn.Linear(200_000, 10))
    x = torch.empty(64, 200_000, device="meta")
    for mesh in (sl.Mesh(dp=8), sl.Mesh(dp=4096)):
        expansion = sl.spmd_expand(model, x, mesh=mesh, batch="dp", params={"**.weight": "o/dp i"})
        assert expansion.collectives
    assert not dist.is_initialized()


def test_another_program_is_another_expansion() -> None:
    """What was compiled first was kept for ever there."""
    model = nn.Linear(4, 4)
    first = sl.spmd_expand(model, torch.randn(8, 4), mesh=TWO, batch="dp")
    second = sl.spmd_expand(model, torch.randn(6, 4), mesh=sl.Mesh(dp=3), batch="dp")
    assert [str(each.input_layouts[-1]) for each in (first, second)] == ["f32[8/dp, 4]", "f32[6/dp, 4]"]
