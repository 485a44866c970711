"""Programs on shards of different sizes, empty ones too: what ranks hold, and what common operators make of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import spmd_lab as sl

if TYPE_CHECKING:
    from collections.abc import Callable

MESHES = (sl.Mesh(x=4), sl.Mesh(x=2, y=2), sl.Mesh(x=2, y=3), sl.Mesh(x=2, y=2, z=2))

OPERATORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "merge": lambda x: x.flatten(),
    "merge the first": lambda x: x.unsqueeze(2).expand(-1, -1, 2).flatten(0, 1),
    "split": lambda x: x.unflatten(1, (1, x.shape[1])),
    "expand": lambda x: x[:, None].expand(-1, 3, -1) * 2,
    "stretch": lambda x: x.expand(3, *x.shape) * 2,
    "repeat": lambda x: x.repeat(2, 3),
    "cat": lambda x: torch.cat([x, x * 2]),
    "stack": lambda x: torch.stack([x, x * 2], 1),
    "pieces": lambda x: tuple(piece * 2 for piece in x.split(2)),
    "chunks": lambda x: tuple(piece * 2 for piece in x.chunk(3, 1)),
    "slice": lambda x: x[1:4] * 2,
    "other slice": lambda x: x[:, 1::2] * 2,
    "select": lambda x: x[0] + x[-1],
    "permute": lambda x: x.t().unsqueeze(0) * 2,
    "matmul": lambda x: x @ x.t(),
    "matmul within": lambda x: x.t() @ x,
    "softmax": lambda x: x.softmax(0) + x.log_softmax(1),
    "sums": lambda x: (x.sum(), x.sum(0), x.sum(1, keepdim=True)),
    "means": lambda x: (x.mean(), x.mean(0), x.var(1, correction=0)),
    "cumsum": lambda x: x.cumsum(0) + x.cumsum(1),
    "extremes": lambda x: (x.amax(0), x.max(1).values, x.argmin(0)),
    "pad": lambda x: F.pad(x, (1, 0, 0, 2)),
    "where": lambda x: torch.where(x > 0, x, x[:1]),
    "norm": lambda x: F.layer_norm(x, x.shape[1:]),
}


@st.composite
def placed(draw: st.DrawFn) -> tuple[sl.Layout, str]:
    """A matrix, divided over one to three axes in any way and any order, and what is done with it."""
    mesh = draw(st.sampled_from(MESHES))
    shape = draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    dims = draw(st.lists(st.sampled_from([0, 0, 1, None]), min_size=mesh.ndim, max_size=mesh.ndim))
    placements = [Replicate() if dim is None else Shard(dim) for dim in dims]
    if draw(st.booleans()):
        placements = _innermost_first(mesh, placements)
    return sl.Layout(shape, torch.float32, mesh, placements), draw(st.sampled_from(sorted(OPERATORS)))


def _innermost_first(mesh: sl.Mesh, placements: list[Any]) -> list[Any]:
    """The same divisions in the other order: the last axis of a dim divides it first."""
    made: list[Any] = []
    for place, each in enumerate(placements):
        later = [size for other, size in zip(placements, mesh.shape, strict=True) if other == each][1:]
        seen = sum(other == each for other in placements[:place])
        factor = math.prod(later[seen:]) if isinstance(each, Shard) else 1
        made.append(_StridedShard(each.dim, split_factor=factor) if factor > 1 else each)
    return made


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(placed())
def test_common_operators(case: tuple[sl.Layout, str]) -> None:
    layout, name = case
    x = torch.randn(layout.global_shape, requires_grad=True)
    traced = sl.trace(lambda x: OPERATORS[name](x * 1.5), x)
    expansion = sl.expand(traced, layout.mesh, inputs={"x": layout.placements}, unsupported="error")
    expansion.program.verify().raise_if_wrong()


@pytest.mark.parametrize(("shape", "layout"), [((1, 6), "a/x b"), ((5, 1), "a b/x")])
@pytest.mark.parametrize("name", OPERATORS)
def test_one_row_or_column_on_four_ranks(name: str, shape: tuple[int, int], layout: str) -> None:
    x = torch.randn(shape, requires_grad=True)
    traced = sl.trace(lambda x: OPERATORS[name](x * 1.5), x)
    sl.expand(traced, MESHES[0], inputs={"x": layout}, unsupported="error").program.verify().raise_if_wrong()


@pytest.mark.parametrize("layout", ["v/tp d", "v/x/y d", "v/y/x d", "v d/tp"])
def test_a_large_vocabulary(layout: str) -> None:
    """50,257 rows over eight ranks: the last rank has fewer, and looks them up at its own places."""
    mesh = sl.Mesh(tp=8) if "tp" in layout else sl.Mesh(x=2, y=4)
    table, tokens = torch.randn(50_257, 8, requires_grad=True), torch.tensor([[0, 50_256, 7], [43_974, 43_975, 1]])
    traced = sl.trace(lambda table, tokens: F.embedding(tokens, table) * 2, table, tokens)
    expansion = sl.expand(traced, mesh, inputs={"table": layout}, unsupported="error")
    expansion.program.verify().raise_if_wrong()
