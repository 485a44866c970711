"""The judge finds the first wrong rank and the element in the whole tensor, and nothing where all is right."""

from __future__ import annotations

import pytest
import torch

from spmd_lab import Layout, Mesh
from spmd_lab.prove.judge import Fault, judge
from spmd_lab.prove.pieces import cut
from spmd_lab.prove.tolerance import Shaker, noise_of, scaled_error, tolerance

MESH = Mesh(dp=2, tp=2)


def shards_of(whole: torch.Tensor, layout: Layout) -> list[torch.Tensor]:
    return [cut(whole, layout, rank) for rank in range(layout.mesh.size)]


def fault_of(
    whole: torch.Tensor, layout: Layout, held: list[torch.Tensor], ranks: tuple[int, ...] = (0, 1, 2, 3)
) -> Fault | None:
    return judge(whole, layout, held, ranks, lambda scale: noise_of(whole, (), scale)).fault


@pytest.mark.parametrize("text", ["f32[5/dp, 3]", "f32[5/dp/tp, 3]", "f32[5, 3]", "f32[5, (3/tp)]"])
def test_shards_of_the_whole_are_right(text: str) -> None:
    layout, whole = Layout.parse(text, MESH), torch.randn(5, 3)
    verdict = judge(whole, layout, shards_of(whole, layout), range(4), lambda scale: noise_of(whole, (), scale))
    assert (verdict.fault, verdict.max_abs_error, verdict.max_scaled_error) == (None, 0.0, 0.0)


def test_the_wrong_rank_and_the_element_of_the_whole_are_named() -> None:
    layout, whole = Layout.parse("f32[8/dp/tp, 3]", MESH), torch.zeros(8, 3)
    held = shards_of(whole, layout)
    held[2][1, 2] = 7.0
    assert fault_of(whole, layout, held) == Fault(2, (5, 2), 0.0, 7.0, "the value differs")


def test_an_element_is_named_where_shards_are_not_contiguous() -> None:
    layout = Layout.parse("i64[(4 4/tp), 2]", Mesh(tp=2))
    whole = torch.arange(32).reshape(16, 2)
    held = shards_of(whole, layout)
    held[1][3, 0] += 1
    fault = fault_of(whole, layout, held, (0, 1))
    assert fault is not None
    assert (fault.rank, fault.index, fault.expected, fault.got) == (1, (7, 0), 14, 15)


def test_a_replica_that_disagrees_is_wrong() -> None:
    layout, whole = Layout.parse("f32[4/tp]", MESH), torch.ones(4)
    held = shards_of(whole, layout)
    held[3][0] = 2.0
    fault = fault_of(whole, layout, held)
    assert fault is not None
    assert (fault.rank, fault.index) == (3, (2,))
    assert fault_of(whole, layout, held, ranks=(0, 1, 2)) is None


def test_the_worst_element_of_the_first_wrong_rank_is_named() -> None:
    layout, whole = Layout.parse("f32[8/dp]", Mesh(dp=2)), torch.ones(8)
    held = shards_of(whole, layout)
    held[0][1], held[0][3], held[1][0] = 1.5, 3.0, 9.0
    fault = fault_of(whole, layout, held, (0, 1))
    assert fault is not None
    assert (fault.rank, fault.index) == (0, (3,))


def test_another_local_shape_is_wrong_before_any_number_is() -> None:
    layout = Layout.parse("f32[5/dp]", Mesh(dp=4))
    held = [torch.ones(2), torch.ones(2), torch.ones(2), torch.ones(0)]
    fault = fault_of(torch.ones(5), layout, held)
    assert fault is not None
    assert (fault.rank, fault.index, fault.expected, fault.got) == (2, None, [1], [2])


def test_another_dtype_is_wrong() -> None:
    layout = Layout.parse("f32[4]", Mesh(dp=2))
    fault = fault_of(torch.ones(4), layout, [torch.ones(4), torch.ones(4, dtype=torch.float64)], (0, 1))
    assert fault is not None
    assert (fault.rank, fault.reason) == (1, "the dtype differs")


@pytest.mark.parametrize(
    ("kind", "pieces", "whole"),
    [
        ("sum", (1.0, 2.0), 3.0),
        ("avg", (1.0, 2.0), 1.5),
        ("max", (1.0, 2.0), 2.0),
        ("min", (1.0, 2.0), 1.0),
        ("product", (3.0, 2.0), 6.0),
    ],
)
def test_pending_pieces_are_reduced_by_their_kind(kind: str, pieces: tuple[float, float], whole: float) -> None:
    layout = Layout.parse(f"f32[1]{{{kind}: tp}}", Mesh(tp=2))
    held = [torch.tensor([piece]) for piece in pieces]
    assert fault_of(torch.tensor([whole]), layout, held, (0, 1)) is None
    fault = fault_of(torch.tensor([whole + 1]), layout, held, (0, 1))
    assert fault is not None
    assert fault.reason == f"the pieces of ranks 0, 1, reduced ({kind} over tp), differ"


def test_integers_must_be_equal() -> None:
    layout, whole = Layout.parse("i64[4]", Mesh(dp=1)), torch.full((4,), 2**40)
    assert fault_of(whole, layout, [whole + 1], (0,)) is not None
    assert tolerance(torch.int64) == 0


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_finite_number_must_stand_in_the_same_places(special: float) -> None:
    layout, whole = Layout.parse("f32[3]", Mesh(dp=1)), torch.tensor([1.0, special, 2.0])
    assert fault_of(whole, layout, [whole.clone()], (0,)) is None
    fault = fault_of(whole, layout, [torch.tensor([1.0, 5.0, 2.0])], (0,))
    assert fault is not None
    assert fault.index == (1,)
    assert fault_of(torch.tensor([1.0, 5.0, 2.0]), layout, [whole], (0,)) is not None


# --- how large an error may be ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_one_unit_in_the_last_place_is_rounding_and_a_percent_of_a_single_number_is_not(dtype: torch.dtype) -> None:
    whole = torch.linspace(1, 2, 16).to(dtype)
    noise = noise_of(whole, ())
    off = (whole.double() * (1 + torch.finfo(dtype).eps)).to(dtype)
    assert 0 < float(scaled_error(off, whole, noise).max()) < tolerance(dtype) / 4
    assert float(scaled_error(whole * 2, whole, noise).min()) > tolerance(dtype)


def test_shaking_moves_no_value_out_of_its_domain() -> None:
    shaker = Shaker(0)
    probabilities = torch.tensor([0.0, 0.5, 1.0])
    moved = shaker(probabilities)
    assert bool(((moved >= 0) & (moved <= 1)).all())
    assert moved[1] != 0.5
    assert shaker(torch.arange(3)).tolist() == [0, 1, 2]


def test_noise_follows_what_was_summed_not_what_came_out() -> None:
    terms = torch.randn(1000, 8)
    terms = torch.cat([terms, -terms])
    samples = [Shaker(0)(terms).sum(0)]
    noise = noise_of(terms.sum(0), samples)
    assert float(terms.sum(0).abs().max()) < 1e-4
    assert float(noise.min()) > 1e-6


def test_numbers_that_stand_for_infinity_do_not_hide_the_others() -> None:
    whole = torch.randn(64).masked_fill(torch.arange(64) % 2 == 0, torch.finfo(torch.float32).min)
    noise = noise_of(whole, [Shaker(0)(whole)])
    wrong = whole.clone()
    wrong[1] += 0.5
    assert float(scaled_error(wrong, whole, noise)[1]) > tolerance(torch.float32)


def test_pieces_that_cancel_are_shaken_in_units_of_their_size() -> None:
    """Zero as the sum of large pieces is not known to the last place of zero; zero that is no sum is."""
    zeros, scale = torch.zeros(100), torch.full((100,), 8.0)
    assert torch.equal(Shaker(0)(zeros), zeros)
    moved = Shaker(0)(zeros, scale).abs()
    assert bool((moved > 0).all())
    assert float(moved.max()) <= 8 * 6 * torch.finfo(torch.float32).eps
    assert torch.equal(Shaker(0)(zeros, torch.zeros(100)), zeros)


def test_what_is_infinite_stays_so_when_it_is_shaken() -> None:
    infinite = torch.tensor([torch.inf, -torch.inf])
    assert torch.equal(Shaker(0)(infinite), infinite)
    assert torch.equal(Shaker(0)(infinite, infinite.abs()), infinite)
