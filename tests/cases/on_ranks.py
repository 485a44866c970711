"""Runs what was expanded on simulated ranks, and puts shards together by `Layout.slices` alone: no judge of ours."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import spmd_lab as sl
from spmd_lab.prove.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["agree", "on_one_device", "on_ranks"]


class _Silent:
    def value(self, name: str, tensors: Sequence[Any]) -> None: ...

    def operand(self, step: str, index: int, before: Sequence[Any], after: Sequence[Any]) -> None: ...


def on_ranks(expansion: sl.Expansion) -> dict[str, torch.Tensor]:
    """Every output and gradient of an expansion, whole, by name."""
    mesh, program = expansion.mesh, expansion.program
    ranks = range(mesh.size)
    wholes = [value.detach() for value in expansion.traced.values]
    given = list(zip(wholes, program.input_layouts, strict=True))
    local = [[whole[layout.slices(rank)].clone() for whole, layout in given] for rank in ranks]
    results = simulate([program.for_rank(rank) for rank in ranks], mesh, local, _Silent())
    found = {}
    for position, (output, layout) in enumerate(zip(expansion.traced.outputs, program.output_layouts, strict=True)):
        if layout is not None:
            assert not layout.is_pending
            whole = torch.full(layout.global_shape, 77, dtype=torch.float64).to(layout.dtype)
            for rank in ranks:
                whole[layout.slices(rank)] = results[rank][position]
            for rank in ranks:
                torch.testing.assert_close(whole[layout.slices(rank)], results[rank][position], equal_nan=True)
            found[output.name] = whole
    return found


def on_one_device(fn: Callable[..., Any], args: Sequence[torch.Tensor], *, trains: bool) -> dict[str, torch.Tensor]:
    """The same of eager PyTorch; the first output is the loss where it trains."""
    fn = copy.deepcopy(fn) if isinstance(fn, nn.Module) else fn
    args = [arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args]
    out = fn(*args)
    outs = list(out) if isinstance(out, (tuple, list)) else [out]
    names = ["out"] if len(outs) == 1 else [f"out[{index}]" for index in range(len(outs))]
    found = {name: value.detach().clone() for name, value in zip(names, outs, strict=True)}
    if trains:
        outs[0].backward()
        found["loss"] = outs[0].detach()
        parameters = list(fn.named_parameters()) if isinstance(fn, nn.Module) else []
        found |= {f"grad({name})": each.grad for name, each in parameters if each.grad is not None}
        found |= {f"grad(#{index})": each.grad for index, each in enumerate(args) if each.grad is not None}
    return found


def agree(
    fn: Callable[..., Any],
    args: Sequence[torch.Tensor],
    mesh: sl.Mesh,
    inputs: Sequence[object],
    params: dict[str, object] | None = None,
    *,
    trains: bool = False,
) -> sl.Expansion:
    """Expand, and hold every output and every gradient against eager PyTorch; then let the proof say the same."""
    expected = on_one_device(fn, args, trains=trains)
    loss = (lambda out: out[0] if isinstance(out, (tuple, list)) else out) if trains else None
    expansion = sl.spmd_expand(fn, *args, mesh=mesh, inputs=inputs, params=params or {}, loss=loss, backward=trains)
    found = on_ranks(expansion)
    arguments = [each.name for each in expansion.traced.inputs if each.role == "input" and not each.closure]
    for name, value in expected.items():
        told = name.replace(name[5:-1], arguments[int(name[6:-1])]) if name.startswith("grad(#") else name
        tolerances = {"rtol": 1e-4, "atol": 1e-5} if value.is_floating_point() else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(found[told], value, **tolerances, msg=lambda text, told=told: f"{told}: {text}")
    expansion.program.verify().raise_if_wrong()
    return expansion
