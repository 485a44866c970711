"""From the names of axes to the process groups of a real mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import fx

from spmd_lab.collectives import axis_of, group_argument, is_collective
from spmd_lab.errors import MeshError
from spmd_lab.mesh import Mesh
from spmd_lab.torch_internals.gloo import mend_gathers

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["bound", "check_device_mesh", "rank_here"]


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
    if device_mesh.device_type == "cpu":
        mend_gathers()
    mesh = Mesh.from_device_mesh(device_mesh)
    graph = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(graph_module.graph, nodes))
    for node in graph.nodes:
        if is_collective(node):
            group = device_mesh.get_group(mesh.axis_index(axis_of(node)))
            node.update_arg(group_argument(node), group.group_name)
    return fx.GraphModule(graph_module, graph, type(graph_module).__name__)
