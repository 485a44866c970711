"""Where everything lies when ranks train a module: as the user asked, and else as under data parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import fx
from torch.distributed.tensor import Shard

from spmd_lab.errors import ArgumentError
from spmd_lab.expand import expand
from spmd_lab.expand.arguments import input_layouts, layouts_at_rest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from spmd_lab.expand import Expansion
    from spmd_lab.layout import Layout
    from spmd_lab.mesh import Mesh
    from spmd_lab.trace import TracedGraph

__all__ = ["Request", "batch_axes", "expanded", "with_pending_gradients"]


@dataclass(frozen=True, eq=False)
class Request:
    """What the user asked of `distribute`; the names are those of its arguments."""

    module: nn.Module
    loss: Callable[[Any], torch.Tensor] | None
    mesh: Mesh
    device_mesh: DeviceMesh
    rank: int
    params: Mapping[str, object]
    inputs: Mapping[str, object] | Sequence[object]
    batch: str | Sequence[str] | None
    outputs: Mapping[str, object]
    pending: Literal["resolve", "keep"]
    unsupported: Literal["replicate", "error"]
    random: Literal["exact", "local"]
    global_inputs: bool
    grad: Literal["mean", "sum"]
    passes: tuple[str | Callable[..., Any], ...]
    compiled: bool
    stored: Mapping[str, object]
    regather: bool


def expanded(request: Request, traced: TracedGraph, first: Expansion | None) -> Expansion:
    """Expand what was traced.

    Gradients and new values lie as their inputs do. An output that has a row for each of the batch comes back as
    this rank's rows, wherever its last operator left it, unless the user placed it.

    Parameters
    ----------
    request : Request
        The user's.
    traced : TracedGraph
        The program of one device.
    first : Expansion, optional
        That of the example: every input lies as it did there.
    """
    params, stored, inputs, batch = request.params, request.stored, request.inputs, request.batch
    if first is not None:
        params, stored, inputs, batch = *_as_before(traced, first), None
    used = input_layouts(traced, request.mesh, params, inputs, batch)
    given = {**used, **layouts_at_rest(traced, request.mesh, stored, used)}
    _refuse_pending_state(traced, given)
    _refuse_placed(request, traced)
    outputs = {**request.outputs, **_following(traced, given)}
    how = (request.pending, request.unsupported, request.random, stored, request.regather)
    found = expand(traced, request.mesh, params, inputs, batch, outputs, *how)
    rows = _rows(found, batch_axes(request, found))
    if all(name in outputs for name in rows):
        return found
    return expand(traced, request.mesh, params, inputs, batch, {**rows, **outputs}, *how)


def with_pending_gradients(request: Request, expansion: Expansion) -> Expansion:
    """The same expansion, whose gradients of parameters are left as they come: pending sums, of one rank's part."""
    traced = expansion.traced
    come = {
        step.name.removeprefix("resolve:"): step.operands[0].have for step in expansion.steps if step.op == "resolve"
    }
    pending = {
        output.name: come[output.name]
        for output in traced.outputs
        if output.role == "gradient"
        and output.name in come
        and come[output.name].is_pending
        and traced.input(str(output.of)).role == "parameter"
    }
    lying = zip(traced.outputs, expansion.output_layouts, strict=True)
    outputs = {output.name: list(pending.get(output.name, layout).placements) for output, layout in lying if layout}
    params, stored, inputs = _as_before(traced, expansion)
    how = (request.pending, request.unsupported, request.random, stored, request.regather)
    return expand(traced, request.mesh, params, inputs, None, outputs, *how)


def batch_axes(request: Request, expansion: Expansion) -> frozenset[str]:
    """The axes that divide the batch: that of ``batch=``; without it, those that divide dim 0 of an argument."""
    if request.batch is not None:
        return frozenset([request.batch if isinstance(request.batch, str) else request.batch[0]])
    return frozenset(
        part.axis
        for found, layout in zip(expansion.traced.inputs, expansion.input_layouts, strict=True)
        if found.role == "input" and not found.closure and layout.global_shape
        for part in layout.splits(0)
    )


def _as_before(traced: TracedGraph, first: Expansion) -> tuple[dict[str, object], dict[str, object], dict[str, object]]:
    """Parameters in use and at rest, and inputs, placed as in another expansion of the same module."""
    known = {
        name: (list(first.in_use.get(found.name, layout).placements), list(layout.placements))
        for found, layout in zip(first.traced.inputs, first.input_layouts, strict=True)
        for name in found.names
    }
    state: dict[str, object] = {}
    resting: dict[str, object] = {}
    inputs: dict[str, object] = {}
    for found in traced.inputs:
        if found.name in known and found.role == "input":
            inputs[found.name], _ = known[found.name]
        elif found.name in known and found.role != "tangent":
            state[found.name], resting[found.name] = known[found.name]
    return state, resting, inputs


def _following(traced: TracedGraph, given: Mapping[str, Layout]) -> dict[str, object]:
    """Gradients and new values, placed as their inputs; the gradient of a pending sum is whole."""
    return {
        output.name: list(given[str(output.of)].settled().placements)
        for output in traced.outputs
        if output.of is not None and output.global_shape is not None
    }


def _rows(expansion: Expansion, axes: frozenset[str]) -> dict[str, object]:
    """The outputs whose rows are those of the batch, and that have come to lie otherwise; placed by rows."""
    traced, mesh = expansion.traced, expansion.mesh
    nodes = {node.name: node for node in traced.graph_module.graph.nodes}
    (returned,) = traced.graph_module.graph.output_node().args
    assert isinstance(returned, (tuple, list))
    rows: dict[str, object] = {}
    for axis in axes:
        divided = {
            nodes[found.node]: layout.global_shape[0]
            for found, layout in zip(traced.inputs, expansion.input_layouts, strict=True)
            if found.role == "input" and layout.global_shape and axis in _axes_of(layout, 0)
        }
        for output, node, layout in zip(traced.outputs, returned, expansion.output_layouts, strict=True):
            if output.role != "output" or layout is None or not layout.global_shape or axis in _axes_of(layout, 0):
                continue
            lengths = {divided[each] for each in _inputs_of(node) if each in divided}
            if layout.global_shape[0] in lengths:
                placements = rows.get(output.name, list(layout.placements))
                assert isinstance(placements, list)
                placements[mesh.axis_index(axis)] = Shard(0)
                rows[output.name] = placements
    return rows


def _axes_of(layout: Layout, dim: int) -> frozenset[str]:
    return frozenset(part.axis for part in layout.splits(dim))


def _inputs_of(node: object) -> frozenset[fx.Node]:
    """The inputs of the program that a value depends on."""
    seen: set[fx.Node] = set()
    waiting = [node] if isinstance(node, fx.Node) else []
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            waiting.extend(current.all_input_nodes)
    return frozenset(each for each in seen if each.op == "placeholder")


def _refuse_placed(request: Request, traced: TracedGraph) -> None:
    for output in traced.outputs:
        if output.of is not None and output.name in request.outputs:
            raise ArgumentError(
                f"{output.name} lies where {output.of} does",
                argument=f"outputs={{{output.name!r}: ...}}",
                hint=f"place {output.of!r} instead",
            )


def _refuse_pending_state(traced: TracedGraph, given: Mapping[str, Layout]) -> None:
    for found in traced.inputs:
        if found.role in ("parameter", "buffer") and given[found.name].is_pending:
            raise ArgumentError(
                f"{found.role} {found.name!r} cannot be held as a pending reduction",
                argument="params",
                layouts={found.name: given[found.name]},
                hint="divide or replicate it",
            )
