"""Programs that write into what they hold: inputs, buffers, views of views, parts of pending and uneven values.

Every new value comes out of the program of a rank, in the layout of what was written into, and equals what eager
PyTorch leaves in the same tensor.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard

import spmd_lab as sl
from tests.cases.on_ranks import on_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

FOUR, GRID = sl.Mesh(a=4), sl.Mesh(a=2, b=2)
LAYOUTS: dict[str, tuple[sl.Mesh, list[object]]] = {
    "rows": (FOUR, [Shard(0)]),
    "columns": (FOUR, [Shard(1)]),
    "whole": (FOUR, [Replicate()]),
    "pending": (FOUR, [Partial()]),
    "rows and columns": (GRID, [Shard(0), Shard(1)]),
    "rows twice": (GRID, [Shard(0), Shard(0)]),
    "pending rows": (GRID, [Partial(), Shard(0)]),
}

PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {}


def program(fn: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    PROGRAMS[fn.__name__] = fn
    return fn


@program
def an_input(x: torch.Tensor) -> Any:
    x.mul_(2).add_(1)
    return x.sum(0)


@program
def an_input_after_it_was_read(x: torch.Tensor) -> Any:
    before = x * 3
    x.relu_()
    return before, x + 1


@program
def an_intermediate(x: torch.Tensor) -> Any:
    y = x * 2
    y.clamp_(max=1.0)
    y.sub_(y.mean())
    return y


@program
def a_slice(x: torch.Tensor) -> Any:
    x[1:4].zero_()
    x[:, -2:] += 1
    return x.sum()


@program
def a_slice_of_an_intermediate(x: torch.Tensor) -> Any:
    y = x.clone()
    y[::2] = 0.5
    y[-1, 1:] = x[0, 1:]
    return y


@program
def views_of_views(x: torch.Tensor) -> Any:
    y = x.clone()
    y.t()[1:3].T[2:].mul_(-1)
    y.view(-1)[4:9].fill_(7.0)
    y.diagonal().add_(10.0)
    y.unsqueeze(0).select(1, 3).narrow(1, 1, 2).copy_(x[0, :2])
    return y, y.view(-1)[::3]


@program
def a_view_that_is_read_after_its_base_was_written(x: torch.Tensor) -> Any:
    row = x[2]
    x.add_(1)
    row.mul_(2)
    return row + x[2], x.sum(0)


@program
def places(x: torch.Tensor) -> Any:
    y = x.clone()
    rows = torch.tensor([0, 4, 4, 1])
    y.index_put_((rows, torch.tensor([1, 1, 1, 0])), torch.arange(1.0, 5.0), accumulate=True)
    y[torch.tensor([3, 0])] = torch.ones(4)
    y.index_add_(0, rows, torch.ones(4, 4)).index_fill_(1, torch.tensor([2]), 9.0)
    y.scatter_(1, torch.tensor([[0], [3]]), -5.0)
    return y


@program
def a_mask(x: torch.Tensor) -> Any:
    x[x > 0] = 0.25
    return x.masked_fill_(x < -1, -1.0).sum(1)


@program
def copied(x: torch.Tensor) -> Any:
    y = torch.empty(5, 4)
    y.copy_(x)
    y[0].copy_(x[-1])
    held = torch.zeros(4)
    held.copy_(x[1]).add_(y[2])
    return y, held


@program
def given_a_place_for_the_result(x: torch.Tensor) -> Any:
    y, z = torch.empty(5, 4), torch.zeros(4, 4)
    torch.exp(x, out=y)
    torch.mm(x.T, x, out=z)
    torch.add(z, 1, out=z)
    return y, z


@program
def a_list_that_grows_in_place(x: torch.Tensor) -> Any:
    states = torch.zeros(5, 4)
    for row in range(5):
        states[row] = states[row - 1] * 0.5 + x[row] if row else x[row]
    return states


def left_by_eager(fn: Callable[[torch.Tensor], Any], x: torch.Tensor) -> dict[str, torch.Tensor]:
    x, before = x.clone(), x
    out = fn(x)
    outs = list(out) if isinstance(out, tuple) else [out]
    names = ["out"] if len(outs) == 1 else [f"out[{index}]" for index in range(len(outs))]
    found = dict(zip(names, outs, strict=True))
    return found if torch.equal(x, before) else found | {"new(x)": x}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_written_is_what_eager_pytorch_leaves(name: str, layout: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 4)
    expected = left_by_eager(PROGRAMS[name], x)
    mesh, placements = LAYOUTS[layout]
    pending = any(isinstance(each, Partial) for each in placements)
    expansion = sl.spmd_expand(PROGRAMS[name], x, mesh=mesh, inputs=[placements], backward=False)
    expansion.program.verify().raise_if_wrong()
    outputs = {each.name: each for each in expansion.traced.outputs}
    assert outputs.keys() == expected.keys()
    new = dict(zip(outputs, expansion.output_layouts, strict=True)).get("new(x)")
    settled = [Replicate() if isinstance(each, Partial) else each for each in placements]
    assert new is None or new == expansion.layout("x").with_placements(settled)
    if not pending:
        for told, value in on_ranks(expansion).items():
            torch.testing.assert_close(value, expected[told], msg=lambda text, told=told: f"{told}: {text}")


# --- buffers and parameters ---------------------------------------------------------------------


class Norms(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.norm(x) * 2).square().sum()


@pytest.mark.parametrize("options", [{}, {"affine": False}], ids=["", "no affine"])
@pytest.mark.parametrize("divided", ["rows", "columns"])
def test_a_norm_called_twice_updates_its_statistics_twice(options: dict[str, Any], divided: str) -> None:
    torch.manual_seed(0)
    model, x = Norms(**options), torch.randn(5, 4) * 3 + 1
    buffers: dict[str, object] = {"norm.running_*": "c/a"} if divided == "columns" else {}
    placement = LAYOUTS[divided][1]
    traced = sl.trace(model, x, loss=lambda out: out)
    expansion = sl.expand(traced, FOUR, inputs=[placement], params=buffers)
    expansion.program.verify().raise_if_wrong()
    eager = copy.deepcopy(model)
    eager(x)
    found = on_ranks(expansion)
    assert {name for name in found if name.startswith("new(")} == {f"new({name})" for name, _ in eager.named_buffers()}
    for name, value in eager.named_buffers():
        torch.testing.assert_close(found[f"new({name})"], value)
        assert expansion.layout(f"new({name})") == expansion.layout(name)
    assert int(found["new(norm.num_batches_tracked)"]) == 2
    assert int(model.norm.num_batches_tracked) == 0, "a trace has counted"


def test_a_cumulative_average_is_refused_by_name() -> None:
    with pytest.raises(sl.SpmdLabError, match=r"^Norms has a batch norm with momentum=None, whose factor is the value"):
        sl.spmd_expand(Norms(momentum=None), torch.randn(5, 4), mesh=FOUR, batch="a", loss=lambda out: out)


class Averaged(nn.Module):
    """Keeps a running mean of its weight, cuts the weight off where it is large, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)
        self.register_buffer("mean", torch.zeros(6, 4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        with torch.no_grad():
            self.layer.weight.clamp_(-0.2, 0.2)
            self.mean.lerp_(self.layer.weight, 0.25)
            self.mean[:2].mul_(self.calls)
        return (self.layer(x) - F.linear(x, self.mean)).square().mean()


@pytest.mark.parametrize("params", [{}, {"**.weight": "o/a i"}, {"**.weight": "o i/a", "mean": "o/a i"}], ids=str)
def test_a_weight_that_is_written_without_gradients(params: dict[str, object]) -> None:
    torch.manual_seed(0)
    model, x = Averaged(), torch.randn(5, 4)
    expansion = sl.spmd_expand(model, x, mesh=FOUR, params=params, batch="a", loss=lambda out: out)
    expansion.program.verify().raise_if_wrong()
    eager = copy.deepcopy(model)
    eager(x).backward()
    found = on_ranks(expansion)
    state = {name: each for name, each in eager.state_dict().items() if name != "layer.bias"}
    for name, value in state.items():
        torch.testing.assert_close(found[f"new({name})"], value)
        assert expansion.layout(f"new({name})") == expansion.layout(name)
    for name, parameter in eager.named_parameters():
        torch.testing.assert_close(found[f"grad({name})"], parameter.grad)


# --- gradients through what is written ----------------------------------------------------------


def through_writes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * w
    y[1:4, ::2] = w[::2].square()
    y.view(-1)[3:8].mul_(x[0, 0])
    y.t()[0].tanh_()
    z = torch.zeros(5, 4)
    z[torch.tensor([4, 0])] = y[:2]
    return ((y + z) * torch.arange(20.0).view(5, 4)).sum()


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if "pending" not in name])
def test_gradients_go_through_writes(layout: str) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(5, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    mesh, placements = LAYOUTS[layout]
    expansion = sl.spmd_expand(through_writes, x, w, mesh=mesh, inputs=[placements, None], loss=lambda out: out)
    expansion.program.verify().raise_if_wrong()
    expected = torch.autograd.grad(through_writes(x, w), (x, w))
    found = on_ranks(expansion)
    for name, value in zip(("grad(x)", "grad(w)"), expected, strict=True):
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)


# --- what is refused ----------------------------------------------------------------------------


def what_the_backward_reads(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    y.add_(1)
    return y.sum()


def test_what_eager_pytorch_refuses_is_refused() -> None:
    fn, x = what_the_backward_reads, torch.randn(5, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="inplace operation"):
        fn(x).backward()
    with pytest.raises(sl.SpmdLabError, match=f"^{fn.__name__} ") as refused:
        sl.spmd_expand(fn, x, mesh=FOUR, batch="a", loss=lambda out: out)
    assert "line: test_mutation.py:" in str(refused.value)
