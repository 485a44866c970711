"""That ranks are about to run the same program: asked before the first collective of any of them."""

from __future__ import annotations

import hashlib
import json
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from spmd_lab.errors import RankError
from spmd_lab.run.agreement import exchange

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from spmd_lab.rebuild import Program

__all__ = ["program_identity", "require_same"]


def program_identity(program: Program) -> str:
    """What tells programs apart, the same on every rank of one program: mesh, layouts, and the graph of rank 0.

    Examples
    --------
    >>> import torch, spmd_lab as sl
    >>> one, other = (
    ...     sl.spmd_expand(torch.nn.Linear(4, 2), torch.zeros(8, 4), mesh=sl.Mesh(dp=size), batch="dp").program
    ...     for size in (2, 4)
    ... )
    >>> program_identity(one) == program_identity(one), program_identity(one) == program_identity(other)
    (True, False)
    """
    nodes = [
        (node.op, node.name, _name_of(node.target), str(node.args), str(node.kwargs), node.meta.get("spmd_step", ""))
        for node in program.graph_module.graph.nodes
    ]
    layouts = [str(layout) for layout in (*program.input_layouts, *program.output_layouts)]
    said = [repr(program.expansion.mesh), sorted(program.rank_axes), layouts, nodes, str(torch.__version__)]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def _name_of(target: Any) -> str:
    """The name of what a node calls; that of a function says where it lies in the memory of one process."""
    return target.__qualname__ if isinstance(target, FunctionType) else str(target)


def require_same(identity: str, told: str, device_mesh: DeviceMesh | None = None, what: str = "programs") -> None:
    """Refuse to go on where ranks hold different things; all of them refuse together.

    It is a collective of its own, of a few bytes: every rank has to call it.

    Parameters
    ----------
    identity : str
        What has to be equal, such as the digest of a program.
    told : str
        What it is, in words, for the error.
    device_mesh : DeviceMesh, optional
        The ranks that are asked; by default all.
    what : str
        What differs, in the plural.

    Raises
    ------
    RankError
        Names the first rank that differs from rank 0, and what both have.
    """
    mine = (identity, told)
    if device_mesh is None:
        held: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(held, mine)
    else:
        held = exchange(mine, device_mesh)
    first, *_ = held
    for rank, other in enumerate(held):
        if other[0] != first[0]:
            raise RankError(
                f"ranks have different {what}: rank 0 has {first[1]} ({first[0]}), rank {rank} has {other[1]} "
                f"({other[0]}); nothing was run",
                rank=rank,
                hint="the same on every rank: the same file, the same code, the same versions",
            )
