"""The collectives that a program runs, whatever passes have made of those of its expansion."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.collectives import axis_of, is_collective, kind_of
from spmd_lab.expand.values import Collective, ring_bytes
from spmd_lab.explain.collectives import CollectiveTable
from spmd_lab.layout import Layout
from spmd_lab.without_data import call_without_data

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spmd_lab.mesh import Mesh
    from spmd_lab.rebuild import Program

__all__ = ["collectives_of", "flat_collective"]


def collectives_of(program: Program) -> CollectiveTable:
    """What rank 0 of a program sends, in the order of its graph.

    Collectives that a pass has added, and that carry no record of their own, are shown as flat tensors.
    """
    nodes = [node for node in program.graph_module.graph.nodes if is_collective(node)]
    sizes = _sizes(program) if any("spmd_collective" not in node.meta for node in nodes) else {}
    mesh = program.expansion.mesh
    return CollectiveTable(
        node.meta.get("spmd_collective") or flat_collective(node, mesh, *sizes[node]) for node in nodes
    )


def flat_collective(node: fx.Node, mesh: Mesh, elements: int, dtype: torch.dtype) -> Collective:
    """The record of a collective whose tensor is taken as flat.

    Parameters
    ----------
    node : torch.fx.Node
        A collective of a program.
    mesh : Mesh
        The mesh.
    elements, dtype
        Of its full message.
    """
    kind, axis = kind_of(node), axis_of(node)
    assert kind is not None
    size = mesh.axis_size(axis)
    reduce_op = str(node.args[1]) if kind in ("all_reduce", "reduce_scatter") else None
    payload = elements * dtype.itemsize
    state = Partial(reduce_op) if reduce_op else Shard(0) if kind == "all_gather" else Replicate()
    after = Shard(0) if kind == "reduce_scatter" else Replicate()
    have, need = ([each if axis == other else Replicate() for other in mesh.axes] for each in (state, after))
    return Collective(
        kind=kind,
        axes=(axis,),
        group_size=size,
        reduce_op=reduce_op,
        payload_bytes=payload,
        sent_bytes_per_rank=ring_bytes(kind, payload, size),
        phase=node.meta.get("phase", "forward"),
        step=str(node.meta.get("spmd_step", node.name)),
        operand=node.all_input_nodes[0].name,
        source=node.meta.get("source"),
        have=Layout((elements,), dtype, mesh, have),
        need=Layout((elements,), dtype, mesh, need),
    )


def _sizes(program: Program) -> Mapping[fx.Node, tuple[int, torch.dtype]]:
    """The full message of every collective of rank 0, found on tensors without data."""
    mesh, found = program.expansion.mesh, dict[fx.Node, tuple[int, torch.dtype]]()
    inputs = iter(program.input_layouts)
    held: dict[fx.Node, Any] = {}
    for node in program.graph_module.graph.nodes:
        if node.op == "placeholder":
            layout = next(inputs)
            held[node] = torch.empty(layout.local_shape(0), dtype=layout.dtype, device="meta")
        elif node.op == "get_attr":
            held[node] = getattr(program.graph_module, str(node.target)).to("meta")
        elif node.op == "call_function":
            args, kwargs = fx.map_arg((node.args, node.kwargs), held.__getitem__)
            made = held[node] = call_without_data(node.target, args, kwargs, mesh, "meta")
            if is_collective(node):
                message = made if kind_of(node) == "all_gather" else args[0]
                found[node] = math.prod(message.shape), message.dtype
    return found
