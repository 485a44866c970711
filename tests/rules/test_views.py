"""Views of shards whose sizes do not divide evenly equal the view of the whole, and keep what can stay divided."""

from __future__ import annotations

import itertools

import pytest
import torch

import spmd_lab as sl

MESH = sl.Mesh(x=2, y=2)
VIEWS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((6, 5, 4), (30, 4)),
    ((30, 4), (6, 5, 4)),
    ((5, 6), (5, 2, 3)),
    ((5, 6), (30,)),
    ((4, 3, 6), (2, 6, 6)),
    ((1, 5, 8), (5, 2, 4)),
    ((6, 7), (1, 6, 7, 1)),
    ((3, 4, 5), (3, 20)),
    ((0, 4), (0, 2, 2)),
    ((4, 0), (4, 2, 0, 0, 0)),
]


def viewed(before: tuple[int, ...], after: tuple[int, ...], placement: str) -> sl.Expansion:
    traced = sl.trace(lambda x: x.view(after), torch.randn(before), backward=False)
    return sl.expand(traced, MESH, inputs=[placement], pending="keep")


@pytest.mark.parametrize(("before", "after"), VIEWS)
def test_a_view_of_any_shards(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    """Every way to divide dims over two axes, in either order, and pending sums."""
    names = "abc"[: len(before)]
    placements = [
        " ".join(f"{name}{'/x' * (x == dim)}{'/y' * (y == dim)}" for dim, name in enumerate(names))
        for x, y in itertools.product(range(-1, len(before)), repeat=2)
    ]
    placements += [f"{name}/y/x ..." for name in names[:1]] + ["... {sum: x}", f"{names[0]}/y ... {{max: x}}"]
    for placement in placements:
        expansion = viewed(before, after, placement)
        assert [step.fallback for step in expansion.steps] == [None], placement
        report = expansion.program.verify()
        assert report.ok, f"{placement}:\n{report}"


@pytest.mark.parametrize(
    ("placement", "output", "kinds"),
    [
        ("6/x/y 5 4", "f32[30/x, 4/y]", ["all_to_all"]),
        ("6/x 5 4/y", "f32[30/x, 4/y]", []),
        ("6 5/x 4", "f32[30/x~6, 4]", []),
    ],
)
def test_what_can_stay_divided_does(placement: str, output: str, kinds: list[str]) -> None:
    expansion = viewed((6, 5, 4), (30, 4), placement)
    assert str(expansion.output_layouts[0]) == output
    assert [each.kind for each in expansion.collectives] == kinds
