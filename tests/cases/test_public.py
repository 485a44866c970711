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
