"""Whether the local program of a plan gives shards of the shapes that the plan says: tried on tensors without data."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from spmd_lab.local_graph import LocalGraphBuilder
from spmd_lab.torch_internals.fakes import FakeTensorMode, quiet_failures
from spmd_lab.without_data import call_without_data

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spmd_lab.layout import Layout
    from spmd_lab.mesh import Mesh
    from spmd_lab.rules.plan import OpCall, Plan

__all__ = ["misfit"]

_MOST_TRIED = 16


def misfit(call: OpCall, plan: Plan) -> str | None:
    """Say how the shards that a plan gives differ from what it says of them.

    Ranks that hold shards of equal sizes stand for one another.

    Parameters
    ----------
    call : OpCall
        The call.
    plan : Plan
        What a rule answered.

    Returns
    -------
    str or None
        The first difference; None where there is none, or where an operator cannot run without data.
    """
    for coordinate in _extremes(call.mesh, plan):
        problem = _problem(call.mesh, plan, coordinate, "meta")
        if problem is not None:
            # slower, but shapes may depend on the device
            with quiet_failures(), FakeTensorMode(allow_non_fake_inputs=True):
                problem = _problem(call.mesh, plan, coordinate, _device_of(call))
        if problem is not None:
            return problem
    return None


def _problem(mesh: Mesh, plan: Plan, coordinate: tuple[int, ...], device: str) -> str | None:
    try:
        made = _run_without_data(mesh, plan, coordinate, device)
    except NotImplementedError:
        return None
    except Exception as error:
        return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    flat = list(made) if isinstance(made, (tuple, list)) else [made]
    for index, layout in enumerate(plan.outputs):
        got = flat[index] if index < len(flat) else None
        if layout is not None and (difference := _difference(layout, got, coordinate)):
            return f"output {index} of rank {mesh.rank(coordinate)} {difference}"
    return None


def _device_of(call: OpCall) -> str:
    """Where the traced program runs."""
    return next((result.device.type for result in call.results if result is not None), "meta")


def _extremes(mesh: Mesh, plan: Plan) -> Iterator[tuple[int, ...]]:
    """One rank for each combination of local shapes; of long axes, the first ranks and the last."""
    layouts = (*plan.needs, *filter(None, plan.outputs))
    uneven = frozenset[str]().union(*(layout.uneven_axes for layout in layouts))
    places = (
        (*range(min(size - 1, _MOST_TRIED)), size - 1) if axis in uneven else (0,)
        for axis, size in zip(mesh.axes, mesh.shape, strict=True)
    )
    seen: set[tuple[tuple[int, ...], ...]] = set()
    for coordinate in itertools.product(*places):
        shapes = tuple(layout.local_shape_at(coordinate) for layout in layouts)
        if shapes not in seen:
            seen.add(shapes)
            yield coordinate


def _run_without_data(mesh: Mesh, plan: Plan, coordinate: tuple[int, ...], device: str) -> Any:
    builder = LocalGraphBuilder(fx.Graph(), mesh, coordinate)
    inputs = tuple(builder.graph.placeholder(f"operand{index}") for index in range(len(plan.needs)))
    made = plan.emit(builder, inputs)
    held: dict[fx.Node, Any] = {
        node: torch.empty(need.local_shape_at(coordinate), dtype=need.dtype, device=device)
        for node, need in zip(inputs, plan.needs, strict=True)
    }
    for node in builder.graph.nodes:
        if node.op == "get_attr":
            held[node] = builder.constants[node.target].to(device)
        elif node.op == "call_function":
            args, kwargs = fx.map_arg((node.args, node.kwargs), held.__getitem__)
            held[node] = call_without_data(node.target, args, kwargs, mesh, device)
    return fx.map_arg(made, held.__getitem__)


def _difference(layout: Layout, got: object, coordinate: tuple[int, ...]) -> str | None:
    expected = layout.local_shape_at(coordinate)
    if not isinstance(got, torch.Tensor):
        return f"is {got!r}, not a tensor of shape {list(expected)}"
    if tuple(got.shape) != expected:
        return f"has shape {list(got.shape)}, not {list(expected)} as {layout} says"
    if got.dtype != layout.dtype:
        return f"has dtype {got.dtype}, not {layout.dtype} as {layout} says"
    return None
