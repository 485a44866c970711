"""From the names of axes to the process groups of a real mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import fx

from spmd_lab.errors import MeshError
from spmd_lab.mesh import Mesh

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["WAIT", "axis_of", "bound", "check_device_mesh", "is_collective", "rank_here"]

WAIT = torch.ops._c10d_functional.wait_tensor.default
"""What waits for the result of a collective."""

_GROUP_ARGUMENT: dict[object, int] = {
    torch.ops._c10d_functional.all_reduce.default: 2,
    torch.ops._c10d_functional.all_gather_into_tensor.default: 2,
    torch.ops._c10d_functional.reduce_scatter_tensor.default: 3,
    torch.ops._dtensor.shard_dim_alltoall.default: 3,
}
"""The collectives of a program, and which of their arguments names the group."""


def is_collective(node: fx.Node) -> bool:
    """Whether a node of a program starts a communication."""
    return node.target in _GROUP_ARGUMENT


def axis_of(node: fx.Node) -> str:
    """The axis that a collective of a program, not yet bound, names as its group."""
    return str(node.args[_GROUP_ARGUMENT[node.target]])


def rank_here(device_mesh: DeviceMesh) -> int:
    """The rank of this process on a mesh, counted along the mesh (the last axis runs fastest).

    Raises
    ------
    MeshError
        If this process does not belong to the mesh.
    """
    coordinate = device_mesh.get_coordinate()
    if coordinate is None:
        raise MeshError(
            f"this process does not belong to {Mesh.from_device_mesh(device_mesh)!r}",
            argument="device_mesh",
            hint="leave out the ranks that are not on the mesh",
        )
    return Mesh.from_device_mesh(device_mesh).rank(tuple(coordinate))


def check_device_mesh(mesh: Mesh, rank: int, device_mesh: DeviceMesh) -> None:
    """Refuse a real mesh whose groups are not those that a rank's program needs.

    Raises
    ------
    MeshError
        If its axes or sizes are others, or if this process is not that rank of it.
    """
    real = Mesh.from_device_mesh(device_mesh)
    if (real.axes, real.shape) != (mesh.axes, mesh.shape):
        raise MeshError(
            f"the program is for {mesh!r}, the device mesh is {real!r}",
            argument="device_mesh",
            hint=f"init_device_mesh({device_mesh.device_type!r}, {mesh.shape}, mesh_dim_names={mesh.axes})",
        )
    here = rank_here(device_mesh)
    if here != rank:
        raise MeshError(
            f"this process is rank {here} of the device mesh, and would meet the others as such: "
            f"it cannot run the program of rank {rank}",
            argument=f"rank={rank}",
            hint=f"for_rank({here}, device_mesh); for_rank({rank}) without a mesh is there to be read",
        )


def bound(graph_module: fx.GraphModule, device_mesh: DeviceMesh) -> fx.GraphModule:
    """A copy whose collectives name the groups of a real mesh instead of its axes."""
    axes = Mesh.from_device_mesh(device_mesh).axes
    graph = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(graph_module.graph, nodes))
    for node in graph.nodes:
        if is_collective(node):
            group = device_mesh.get_group(axes.index(axis_of(node)))
            node.update_arg(_GROUP_ARGUMENT[node.target], group.group_name)
    return fx.GraphModule(graph_module, graph, type(graph_module).__name__)
