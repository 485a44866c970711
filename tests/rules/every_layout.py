"""Runs a function with its inputs laid out in every way, on one axis and on two, against the single device.

Use it where `run_every_way` does not reach: for what a user may pass, whatever the rule makes of it. Choose sizes so
that shards are uneven and some empty (5 or 1 rows on 4 ranks)::

    check(lambda x: x.sort(0), torch.randn(5, 3))                     # right numbers, forward and gradients
    check(torch.cdist, a, b, fallback=False)                          # … and nothing is gathered for want of a rule
    assert moves(lambda x: x.sort(0), x, inputs=["a b/x"]) == []      # … and this division costs nothing
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from torch.distributed.tensor import Partial, Replicate, Shard

import spmd_lab as sl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch
    from torch.distributed.tensor.placement_types import Placement

__all__ = ["check", "moves"]

Combo = tuple[tuple["Placement", ...], ...]
"""Placements, one per axis, of each tensor."""

MESHES = (sl.Mesh(x=4), sl.Mesh(x=2, y=2))


def check(
    fn: Callable[..., object],
    *tensors: torch.Tensor,
    meshes: Sequence[sl.Mesh] = MESHES,
    most: int = 9,
    fallback: bool = True,
    kinds: Sequence[str] = ("sum",),
) -> int:
    """Prove ``fn`` in all combinations of layouts of its tensors; count them.

    Each tensor is replicated, divided along each of its dims, and pending where it is rounded. Gradients are proved
    too, of the tensors that require them.

    Parameters
    ----------
    fn : callable
        Takes the tensors.
    meshes : sequence of Mesh
        Where to run.
    most : int
        Combinations per mesh: where there are more, an even choice of them.
    fallback : bool
        Whether operators may be gathered for want of a rule.
    kinds : sequence of str
        The pending reductions to try.
    """
    traced = sl.trace(fn, *tensors)
    runs = 0
    for mesh in meshes:
        combos = list(_combos(tensors, mesh, kinds))
        step = max(1, -(-len(combos) // most))
        for combo in combos[::step]:
            _prove(traced, mesh, combo, "replicate" if fallback else "error")
            runs += 1
    return runs


def moves(fn: Callable[..., object], *tensors: torch.Tensor, inputs: Sequence[object], mesh: sl.Mesh) -> list[str]:
    """The collectives that operators need with such inputs, outputs kept as they come; and prove them."""
    traced = sl.trace(fn, *tensors, backward=False)
    expansion = sl.expand(traced, mesh, inputs=list(inputs), pending="keep", unsupported="error")
    expansion.program.verify().raise_if_wrong()
    return [each.kind for each in expansion.collectives]


def _combos(tensors: Sequence[torch.Tensor], mesh: sl.Mesh, kinds: Sequence[str]) -> Iterator[Combo]:
    choices = [list(itertools.product(_placements(each, kinds), repeat=mesh.ndim)) for each in tensors]
    return itertools.product(*choices)


def _placements(tensor: torch.Tensor, kinds: Sequence[str]) -> list[Placement]:
    is_rounded = tensor.is_floating_point() or tensor.is_complex()
    divided = [Shard(dim) for dim in range(tensor.ndim)]
    return [Replicate(), *divided, *[Partial(kind) for kind in kinds if is_rounded]]


def _prove(traced: sl.TracedGraph, mesh: sl.Mesh, combo: Combo, unsupported: str) -> None:
    inputs = [list(each) for each in combo]
    try:
        expansion = sl.expand(traced, mesh, inputs=inputs, unsupported=unsupported)  # type: ignore[arg-type]
    except sl.SpmdLabError as error:
        raise AssertionError(f"{inputs} on {mesh!r}:\n{error}") from error
    report = expansion.program.verify()
    assert report.ok, f"{inputs} on {mesh!r}:\n{report}"
