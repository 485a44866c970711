"""Right programs, and ways to make them wrong."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import fx, nn

import spmd_lab as sl
from spmd_lab.prove import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from spmd_lab.prove import VerifyReport

c10d = torch.ops._c10d_functional
aten = torch.ops.aten


@dataclass
class Altered:
    """A program whose graphs were tampered with."""

    expansion: sl.Expansion
    graphs: Sequence[fx.GraphModule]

    def for_rank(self, rank: int, device_mesh: DeviceMesh | None = None) -> fx.GraphModule:
        assert device_mesh is None
        return self.graphs[rank]

    def verify(self, inputs: Mapping[str, torch.Tensor] | None = None, seed: int = 0) -> VerifyReport:
        return verify(self, inputs, seed)  # type: ignore[arg-type]


def altered(program: sl.Program, change: Callable[[fx.Graph], None], ranks: Sequence[int] | None = None) -> Altered:
    """The program with its graphs changed: all of them, or those of some ranks."""
    copies: dict[tuple[int, bool], fx.GraphModule] = {}
    graphs = []
    for rank in range(program.expansion.mesh.size):
        original = program.for_rank(rank)
        concerned = ranks is None or rank in ranks
        key = (id(original), concerned)
        if key not in copies:
            copies[key] = copy.deepcopy(original)
            if concerned:
                change(copies[key].graph)
                copies[key].graph.lint()
        graphs.append(copies[key])
    return Altered(program.expansion, graphs)


def named(graph: fx.Graph, name: str) -> fx.Node:
    return next(node for node in graph.nodes if node.name == name)


def names(program: sl.Program, target: object, step: str | None = None) -> list[str]:
    """The nodes that call an operator."""
    return [
        node.name
        for node in program.graph_module.graph.nodes
        if node.target == target and step in (None, node.meta.get("spmd_step"))
    ]


def step_of(program: sl.Program, name: str) -> str:
    return str(named(program.graph_module.graph, name).meta["spmd_step"])


# --- ways to be wrong ---------------------------------------------------------------------------


def bypass(name: str) -> Callable[[fx.Graph], None]:
    """Leave an operator out."""

    def change(graph: fx.Graph) -> None:
        node = named(graph, name)
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)

    return change


def twice(name: str) -> Callable[[fx.Graph], None]:
    """Run an operator on its own result again."""

    def change(graph: fx.Graph) -> None:
        node = named(graph, name)
        with graph.inserting_after(node):
            again = graph.call_function(node.target, (node, *node.args[1:]))
        again.meta = dict(node.meta)
        node.replace_all_uses_with(again, delete_user_cb=lambda user: user is not again)

    return change


def with_argument(name: str, position: int, value: object) -> Callable[[fx.Graph], None]:
    """Give an operator another argument; a text names a node where there was one."""

    def change(graph: fx.Graph) -> None:
        node = named(graph, name)
        was_node = isinstance(node.args[position], fx.Node)
        node.update_arg(position, named(graph, value) if was_node and isinstance(value, str) else value)

    return change


# --- right programs -----------------------------------------------------------------------------


class Perceptron(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x)))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (make(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for make in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.o(y.transpose(1, 2).flatten(2))


def divided(*columns: str, rows: str) -> dict[str, object]:
    return sl.colwise(*columns, axis="tp") | sl.rowwise(rows, axis="tp")


def weighted(out: torch.Tensor) -> torch.Tensor:
    """A loss in which no two outputs weigh the same."""
    return (out * torch.linspace(0.5, 1.5, out.numel(), device=out.device).view_as(out)).square().mean()


@cache
def perceptron() -> sl.Program:
    """Data and tensor parallel, with gradients that are resolved."""
    torch.manual_seed(0)
    mesh = sl.Mesh(dp=2, tp=2)
    model, x = Perceptron(8), torch.randn(8, 8)
    return sl.rebuild(sl.expand(sl.trace(model, x, loss=weighted), mesh, divided("up", rows="down"), batch="dp"))


@cache
def attention() -> sl.Program:
    """The gradient of k.bias is zero by symmetry: what is left of it is noise."""
    torch.manual_seed(0)
    mesh = sl.Mesh(dp=2, tp=2)
    model, x = Attention(16, 4), torch.randn(4, 6, 16)
    return sl.rebuild(sl.expand(sl.trace(model, x, loss=weighted), mesh, divided("q", "k", "v", rows="o"), batch="dp"))


@cache
def uneven() -> sl.Program:
    """Rows that do not divide: 10 over 4 ranks, and a last rank with one row."""
    torch.manual_seed(0)
    traced = sl.trace(Perceptron(6), torch.randn(10, 6), loss=weighted)
    return sl.rebuild(sl.expand(traced, sl.Mesh(dp=4), batch="dp", outputs={"out": "_ _"}))
