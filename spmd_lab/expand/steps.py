"""Makes the steps of an expansion from the subgraphs that do the work."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import TYPE_CHECKING

from torch import fx
from torch.distributed.tensor import Shard

from spmd_lab.elements import chunk_size
from spmd_lab.expand.values import Collective, Operand, Step, ring_bytes
from spmd_lab.torch_internals.placements import StridedShard

if TYPE_CHECKING:
    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.expand.subgraph import Subgraph
    from spmd_lab.local_graph import EmittedCollective
    from spmd_lab.trace.values import Phase, Source

__all__ = ["make_step"]


def make_step(
    name: str, op: str, source: Source | None, phase: Phase, operand_names: tuple[str, ...], subgraph: Subgraph
) -> Step:
    """One step: a subgraph, under the names of one place in the program."""
    operands = tuple(
        Operand(operand, have, need, change)
        for operand, have, need, change in zip(
            operand_names, subgraph.have, subgraph.plan.needs, subgraph.redistributions, strict=True
        )
    )
    collectives = tuple(
        _collective(emitted, name, source, phase, operand_names) for emitted in subgraph.first.collectives
    )
    return Step(
        name=name,
        op=op,
        source=source,
        phase=phase,
        operands=operands,
        outputs=subgraph.plan.outputs,
        collectives=collectives,
        fallback=subgraph.plan.fallback,
        draw_bytes=subgraph.plan.draw_bytes,
        draws_locally=subgraph.plan.draws_locally,
        _subgraph=partial(step_graph, subgraph, operand_names),
    )


def _collective(
    emitted: EmittedCollective, step: str, source: Source | None, phase: Phase, operand_names: tuple[str, ...]
) -> Collective:
    group_size = emitted.have.mesh.axis_size(emitted.axis)
    payload = payload_bytes(emitted)
    return Collective(
        kind=emitted.kind,
        axes=(emitted.axis,),
        group_size=group_size,
        reduce_op=emitted.reduce_op,
        payload_bytes=payload,
        sent_bytes_per_rank=ring_bytes(emitted.kind, payload, group_size),
        phase=phase,
        step=step,
        operand=step if emitted.operand is None else operand_names[emitted.operand],
        source=source,
        have=emitted.have,
        need=emitted.need,
    )


def payload_bytes(emitted: EmittedCollective) -> int:
    """The full message of the largest rank, padding of uneven pieces included: that is what travels."""
    position = emitted.have.mesh.axis_index(emitted.axis)
    size = emitted.have.mesh.shape[position]
    message = list(emitted.have.largest_local_shape)
    if emitted.kind == "all_gather":
        message[_dim(emitted.have.placements[position])] *= size
    elif emitted.kind in ("reduce_scatter", "all_to_all"):
        dim = _dim(emitted.need.placements[position])
        message[dim] = chunk_size(message[dim], size) * size
    return math.prod(message) * emitted.have.dtype.itemsize


def _dim(placement: Placement) -> int:
    assert isinstance(placement, (Shard, StridedShard))
    return int(placement.dim)


def step_graph(subgraph: Subgraph, operand_names: tuple[str, ...], rank: int) -> fx.GraphModule:
    """The dispatch subgraph of a step as a graph module of its own, its placeholders named after the operands."""
    local = subgraph.at(subgraph.mesh.coordinate(rank))
    graph = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    for placeholder, name in zip(local.inputs, operand_names, strict=True):
        made = nodes[placeholder] = graph.placeholder(re.sub(r"\W", "_", name))
        made.target = made.name  # a tensor that is read twice has two placeholders
    for node in local.body:
        nodes[node] = graph.node_copy(node, nodes.__getitem__)
    outputs = tuple(None if node is None else nodes[node] for node in local.outputs)
    graph.output(outputs if subgraph.gives_tuple else outputs[0])
    return fx.GraphModule(local.constants, graph, "LocalGraph")
