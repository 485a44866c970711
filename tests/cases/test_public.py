"""What has gone wrong in public goes right here, or is refused in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.distributed.tensor import Shard

import spmd_lab as sl
from tests.cases.on_ranks import agree
from tests.cases.programs import CASES

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("name", CASES)
def test_what_has_gone_wrong_elsewhere_equals_the_single_device(name: str) -> None:
    case = CASES[name]
    fn, args = case.build()
    agree(fn, args, case.mesh, case.inputs, case.params, trains=case.trains)


@pytest.mark.parametrize("name", CASES)
def test_it_does_so_however_its_inputs_are_divided(name: str) -> None:
    """The same programs on three ranks, where nothing divides, each input by its first dim, and by its last."""
    case = CASES[name]
    fn, args = case.build()
    for dim in (0, -1):
        inputs = [[Shard(dim % arg.ndim)] if arg.ndim else None for arg in args]
        agree(fn, args, sl.Mesh(x=3), inputs, {}, trains=case.trains)


X, MASK, COUNTS = torch.randn(6, 4), torch.arange(24).reshape(6, 4) % 3 == 0, torch.tensor([1, 0, 2, 1, 0, 3])

OF_ANY_LENGTH: dict[str, tuple[Callable[..., object], tuple[torch.Tensor, ...], str, str]] = {
    "mask": (lambda x, mask: x[mask], (X, MASK), "aten.nonzero", r"torch.where\(mask, x, 0\) instead of x\[mask\]"),
    "select": (lambda x, mask: x.masked_select(mask), (X, MASK), "aten.masked_select", r"torch.where"),
    "nonzero": (lambda x: x.nonzero(), (X,), "aten.nonzero", r"topk of a fixed number"),
    "unique": (lambda x: x.unique(), (X,), "aten._unique2", r"a table of all values there can be"),
    "repeat": (lambda x, n: x.repeat_interleave(n, 0), (X, COUNTS), "aten.repeat_interleave", "output_size="),
    "counts": (lambda n: torch.bincount(n), (COUNTS,), "aten.bincount", r"scatter_add"),
}


@pytest.mark.parametrize("name", OF_ANY_LENGTH)
def test_a_size_that_depends_on_data_is_refused_in_one_sentence(name: str) -> None:
    program, args, operator, instead = OF_ANY_LENGTH[name]
    with pytest.raises(sl.SpmdLabError, match=instead) as refused:
        sl.spmd_expand(program, *args, mesh=sl.Mesh(x=2), inputs=[[Shard(0)] for _ in args])
    first, line, *_ = str(refused.value).splitlines()
    assert operator in first
    assert "the shape of whose output depends on data" in first
    assert f'"{name}": (lambda' in line


class Table(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(6, 4, sparse=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.words(tokens).square().sum()


NOT_DENSE: dict[str, tuple[Callable[..., object], torch.Tensor, str]] = {
    "coo": (lambda x: x.to_sparse(), X, "aten._to_sparse.default, which makes a torch.sparse_coo tensor"),
    "csr": (lambda x: x.to_sparse_csr(), X, "aten._to_sparse_csr.default, which makes a torch.sparse_csr tensor"),
    "halfway": (lambda x: x.to_sparse() @ x.T, X, "aten._to_sparse.default, which makes a torch.sparse_coo tensor"),
    "table": (Table(), torch.tensor([1, 2, 3]), "which makes a torch.sparse_coo tensor"),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("name", NOT_DENSE)
def test_a_tensor_that_is_not_dense_is_refused_where_it_is_made(name: str) -> None:
    program, arg, what = NOT_DENSE[name]
    with pytest.raises(sl.SpmdLabError, match=f"{what}: only dense ones are divided") as refused:
        sl.spmd_expand(
            program, arg, mesh=sl.Mesh(x=2), inputs=[[Shard(0)]], loss=None if name != "table" else torch.sum
        )
    assert "line: test_public.py:" in str(refused.value)
    assert "a dense tensor, and a mask" in str(refused.value)


def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2 if x.max() > 1 else x


def as_many_as_it_says(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return x[: int(n.sum().item())]


@pytest.mark.parametrize("program", [halved, as_many_as_it_says])
def test_a_branch_on_data_is_refused_with_its_line(program: Callable[..., object]) -> None:
    args = (X, COUNTS)[: program.__code__.co_argcount]
    with pytest.raises(sl.SpmdLabError, match=f"^{program.__name__} needs the value of a tensor to go on") as refused:
        sl.spmd_expand(program, *args, mesh=sl.Mesh(x=2), batch="x")
    assert f"line: test_public.py:{program.__code__.co_firstlineno + 1}: return " in str(refused.value)
    assert "torch.where for a branch, a Python number for .item()" in str(refused.value)


def test_a_mask_may_be_written_through_or_kept_as_a_factor_or_as_the_best_few() -> None:
    """The usual ways out, which the refusals name."""

    def written(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[mask] = 0.0
        return x

    def best(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.where(mask, x, -torch.inf).topk(2, 0).values

    for program in (written, best, lambda x, mask: torch.where(mask, x, 0.0), lambda x, mask: (x * mask).sum(0)):
        agree(program, (X, MASK), sl.Mesh(x=4), [[Shard(0)], [Shard(0)]])
