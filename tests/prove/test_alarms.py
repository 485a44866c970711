"""A right program is never called wrong: random ones, and those that once were."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.distributed.tensor import Partial

import spmd_lab as sl
from tests.prove.alarms.cases import case
from tests.prove.alarms.verdicts import Verdict, verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable

CASES = range(60)


@pytest.mark.parametrize("number", CASES)
def test_a_right_program_at_random_is_proved(number: int) -> None:
    verdict, text = verdict_of(number)
    assert verdict is Verdict.PROVED, text


def test_a_case_is_always_the_same_and_differs_from_others() -> None:
    assert str(case(3)) == str(case(3))
    assert all(torch.equal(one, other) for one, other in zip(case(3).inputs, case(3).inputs, strict=True))
    assert len({str(case(number)).partition(":")[2] for number in CASES}) == len(CASES)


def test_the_cases_are_of_every_kind() -> None:
    cases = [case(number) for number in CASES]
    assert {each.dtype for each in cases} == {torch.float32, torch.float64, torch.bfloat16, torch.float16}
    assert {each.mesh.ndim for each in cases} == {1, 2}
    assert any(isinstance(one, Partial) for each in cases for placements in each.placements for one in placements)
    assert any(tensor.isinf().any() for each in cases for tensor in each.inputs)
    elements = torch.cat([tensor.flatten().double().abs() for each in cases for tensor in each.inputs])
    finite = elements[elements.isfinite() & (elements > 0)]
    assert finite.min() < 1e-6
    assert finite.max() > 1e5


def rms(x: torch.Tensor) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("fn", [rms, torch.square, lambda x: x.float() * 1e3])
def test_pieces_that_cancel_are_rounded_all_the_same(
    fn: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    """Their sum is zero on one device, and the rounding of its pieces on the ranks: what follows may make it large."""
    traced = sl.trace(fn, torch.zeros(3, 5, dtype=dtype), loss=lambda out: out.float().square().mean())
    program = sl.rebuild(sl.expand(traced, sl.Mesh(tp=4), inputs=[[Partial("sum")]]))
    for seed in range(3):
        program.verify(seed=seed).raise_if_wrong()
