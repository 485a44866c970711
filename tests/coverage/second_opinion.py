"""A judge beside the proof: what all ranks return, put together by the slices of layouts, against plain eager PyTorch.

It shares with the proof how tensors are cut and how ranks are simulated, and looks for numbers that are grossly wrong.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import torch

from spmd_lab.prove.draw import drawn
from spmd_lab.prove.pieces import replicas
from spmd_lab.prove.shares import local_values
from spmd_lab.prove.simulate import simulate
from tests.coverage.operators import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spmd_lab.layout import Layout
    from spmd_lab.rebuild import Program

__all__ = ["disagreement", "wrong_shape"]

COARSE = 1e-2
LARGE = 1e4


def disagreement(program: Program, call: Callable[..., Any]) -> str:
    """What the outputs and gradients of all ranks have that eager PyTorch has not; empty where they agree."""
    traced = program.expansion.traced
    if any(_is_random(node.target) for node in traced.op_nodes):
        return ""
    held = _held(program)
    if _has_large_pieces(program, held):
        return ""
    values = [_whole(layout, tensors) for layout, tensors in zip(program.input_layouts, held, strict=True)]
    expected = _expected(program, call, values)
    columns = _run(program, held)
    for output, layout, column in zip(traced.outputs, program.output_layouts, columns, strict=True):
        if layout is None or output.name not in expected:
            continue
        whole = expected[output.name]
        for rank, got in enumerate(column):
            what = _difference(whole, layout, rank, got)
            if what:
                return f"the proof is silent, but {output.name} {layout} differs on rank {rank}: {what}"
    return ""


def wrong_shape(program: Program) -> str:
    """The output whose shards are not of the shape that their layout says; empty where all are."""
    traced = program.expansion.traced
    columns = _run(program, _held(program))
    for output, layout, column in zip(traced.outputs, program.output_layouts, columns, strict=True):
        for rank, got in enumerate(column):
            if layout is not None and tuple(got.shape) != layout.local_shape(rank):
                return f"{output.name} {layout} has shape {tuple(got.shape)} on rank {rank}"
    return ""


def _has_large_pieces(program: Program, held: Sequence[Sequence[torch.Tensor]]) -> bool:
    """Whether the rounding of pending sums is no small number, as `exp` may make of it what it likes."""
    return any(
        float(piece.abs().max()) > LARGE
        for layout, pieces in zip(program.input_layouts, held, strict=True)
        if layout.is_pending
        for piece in pieces
        if piece.numel()
    )


class _Silent:
    """An observer that looks at nothing."""

    def value(self, name: str, tensors: Sequence[Any]) -> None: ...

    def operand(self, step: str, index: int, before: Sequence[Any], after: Sequence[Any]) -> None: ...


def _held(program: Program) -> tuple[tuple[torch.Tensor, ...], ...]:
    """What each rank holds of each input: of the traced values, and of drawn tangents."""
    traced = program.expansion.traced
    generator = torch.Generator().manual_seed(1)
    values = [
        drawn(traced, each, generator) if each.role == "tangent" else value.detach().clone()
        for each, value in zip(traced.inputs, traced.values, strict=True)
    ]
    return local_values(values, program.input_layouts, seed=1)


def _whole(layout: Layout, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """What the ranks hold, put together; pending sums are added up as ranks do it, since rounding may decide."""
    whole = tensors[0].new_empty(layout.global_shape)
    for members in replicas(layout)[0]:
        whole[layout.slices(members[0])] = reduce(torch.add, [tensors[rank] for rank in members])
    return whole


def _run(program: Program, held: Sequence[Sequence[torch.Tensor]]) -> list[tuple[Any, ...]]:
    """The outputs in order, each as every rank returns it."""
    mesh = program.expansion.mesh
    graphs = [program.for_rank(rank) for rank in range(mesh.size)]
    inputs = [[each[rank] for each in held] for rank in range(mesh.size)]
    with torch.no_grad():
        return list(zip(*simulate(graphs, mesh, inputs, _Silent()), strict=True))


def _expected(program: Program, call: Callable[..., Any], values: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Outputs and gradients of eager PyTorch by the names that the program gives them."""
    traced = program.expansion.traced
    described = list(zip(traced.inputs, values, strict=True))
    graded = {each.of for each in traced.outputs if each.role == "gradient" and each.global_shape is not None}
    inputs = {
        each.name: value.clone().requires_grad_(each.name in graded)
        for each, value in described
        if each.role != "tangent"
    }
    tangents = {each.name: value for each, value in described if each.role == "tangent"}
    made = tensors_in(call(*inputs.values()))
    outputs = [each for each in traced.outputs if each.role == "output" and each.global_shape is not None]
    expected = {each.name: value for each, value in zip(outputs, made, strict=True)}
    starts = {name: value for name, value in expected.items() if f"tangent({name})" in tangents}
    wanted = {name: value for name, value in inputs.items() if value.requires_grad}
    if starts and wanted:
        weights = [tangents[f"tangent({name})"] for name in starts]
        gradients = torch.autograd.grad(list(starts.values()), list(wanted.values()), weights, allow_unused=True)
        named = zip(wanted, gradients, strict=True)
        expected |= {f"grad({name})": each for name, each in named if each is not None}
    return {name: each.detach() for name, each in expected.items()}


def _difference(whole: torch.Tensor, layout: Layout, rank: int, got: torch.Tensor) -> str:
    return _apart(got, whole[layout.slices(rank)] if whole.ndim else whole)


def _apart(got: torch.Tensor, expected: torch.Tensor) -> str:
    """How two tensors differ; empty where they agree within coarse limits."""
    coarse = 0.0
    if expected.is_floating_point() or expected.is_complex():
        coarse = max(COARSE, 8 * torch.finfo(expected.dtype).eps)
    sizes = expected.abs().double().nan_to_num(0.0, 0.0, 0.0) if coarse and expected.numel() else torch.zeros(1)
    absolute = coarse * max(float(sizes.mean()), COARSE)
    try:
        torch.testing.assert_close(got, expected, rtol=coarse, atol=absolute, equal_nan=True, check_stride=False)
    except AssertionError as error:
        return str(error).strip().replace("\n", " ")
    return ""


def _is_random(target: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
