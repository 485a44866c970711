"""A program in a file: mesh, layouts, and the graph of every rank that runs one of its own."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from spmd_lab.binding import bound, check_device_mesh
from spmd_lab.errors import SavingError
from spmd_lab.files import check_place, write_file
from spmd_lab.layout import Layout
from spmd_lab.mesh import Mesh
from spmd_lab.saving.plain import PlainGraph, graph_from_plain, graph_to_plain

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from torch import fx
    from torch.distributed.device_mesh import DeviceMesh

    from spmd_lab.rebuild import Program

__all__ = ["Port", "SavedProgram", "digest_of", "load", "save"]

FORMAT = 1
_MOST_GRAPHS = 512


@dataclass(frozen=True)
class Port:
    """One flat input or output of a program: its name, its role, and its layout; None where it is no tensor."""

    name: str
    role: str
    layout: Layout | None


@dataclass(frozen=True, repr=False, eq=False)
class SavedProgram:
    """A program without the expansion that it came from: what real ranks need to run it.

    Parameters
    ----------
    name : str
        What was traced.
    mesh : Mesh
        The mesh.
    inputs, outputs : tuple of Port
        What goes in and comes out, in order.
    torch_version : str
        The torch that made it.
    rank_axes : tuple of str
        The axes on which ranks run different graphs.
    graphs : mapping of str to plain data
        The graph of each place on those axes.
    constants : mapping of str to torch.Tensor
        The tensors that graphs hold.
    """

    name: str
    mesh: Mesh
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    torch_version: str
    rank_axes: tuple[str, ...]
    graphs: Mapping[str, PlainGraph]
    constants: Mapping[str, torch.Tensor]

    def for_rank(self, rank: int, device_mesh: DeviceMesh | None = None) -> fx.GraphModule:
        """The program of one rank, as `Program.for_rank` gives it: bound to the groups of a real mesh by axis.

        Raises
        ------
        MeshError
            If the mesh has no such rank, or ``device_mesh`` has other axes or sizes.
        """
        graph_module = graph_from_plain(self.graph_of(rank), self.constants, f"{self.name}Program")
        if device_mesh is None:
            return graph_module
        check_device_mesh(self.mesh, rank, device_mesh)
        return bound(graph_module, device_mesh)

    def graph_of(self, rank: int) -> PlainGraph:
        """The graph of one rank, as plain data.

        Raises
        ------
        MeshError
            If the mesh has no such rank.
        """
        return self.graphs[_place(self.mesh, self.rank_axes, self.mesh.coordinate(rank))]

    @cached_property
    def digest(self) -> str:
        """What tells programs apart: ranks that run together must have the same."""
        ports = [(port.name, str(port.layout)) for port in (*self.inputs, *self.outputs)]
        constants = {name: (str(value.dtype), digest_of(value)) for name, value in self.constants.items()}
        said = [self.name, repr(self.mesh), ports, self.graphs, constants, self.torch_version]
        return hashlib.sha256(json.dumps(said, sort_keys=True, default=repr).encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return (
            f"<SavedProgram {self.name} on {self.mesh!r}: {len(self.inputs)} inputs, {len(self.outputs)} outputs, "
            f"torch {self.torch_version}>"
        )


def digest_of(tensor: torch.Tensor) -> str:
    """What tells the elements of tensors apart.

    Examples
    --------
    >>> digest_of(torch.ones(2)) == digest_of(torch.ones(2)), digest_of(torch.ones(2)) == digest_of(torch.zeros(2))
    (True, False)
    """
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().data).hexdigest()[:16]


def saved_program(program: Program) -> SavedProgram:
    """What a file keeps of a program.

    Raises
    ------
    SavingError
        If it has too many graphs, or holds something that cannot be written.
    """
    expansion = program.expansion
    mesh, axes = expansion.mesh, tuple(axis for axis in expansion.mesh.axes if axis in program.rank_axes)
    ranges = [range(size) if axis in axes else range(1) for axis, size in zip(mesh.axes, mesh.shape, strict=True)]
    places = list(itertools.product(*ranges))
    if len(places) > _MOST_GRAPHS:
        raise SavingError(
            f"the ranks of {mesh!r} run {len(places):,} different graphs along {', '.join(axes)}",
            hint="expand the program where it runs; what differs is a slice of a whole tensor, or an uneven shard",
        )
    graphs: dict[str, PlainGraph] = {}
    constants: dict[str, torch.Tensor] = {}
    for coordinate in places:
        graph_module = program.for_rank(mesh.rank(coordinate))
        graphs[_place(mesh, axes, coordinate)] = graph_to_plain(graph_module)
        constants |= {
            str(node.target): getattr(graph_module, str(node.target)).detach()
            for node in graph_module.graph.nodes
            if node.op == "get_attr"
        }
    traced = expansion.traced
    return SavedProgram(
        name=expansion.name,
        mesh=mesh,
        inputs=tuple(
            Port(each.name, each.role, layout)
            for each, layout in zip(traced.inputs, program.input_layouts, strict=True)
        ),
        outputs=tuple(
            Port(each.name, each.role, layout)
            for each, layout in zip(traced.outputs, program.output_layouts, strict=True)
        ),
        torch_version=str(torch.__version__),
        rank_axes=axes,
        graphs=graphs,
        constants=constants,
    )


def save(program: Program, path: str | os.PathLike[str]) -> Path:
    """Write a program to a file that `load` reads: no code but the names of operators.

    Raises
    ------
    SavingError
        If it holds something that cannot be written.
    ArgumentError
        If there is no such folder, or the path is a folder.
    """
    check_place(path)
    kept = saved_program(program)
    data = {
        "spmd_lab": FORMAT,
        "torch": kept.torch_version,
        "name": kept.name,
        "axes": list(kept.mesh.axes),
        "shape": list(kept.mesh.shape),
        "device_type": kept.mesh.device_type,
        "inputs": [_port_to_plain(port) for port in kept.inputs],
        "outputs": [_port_to_plain(port) for port in kept.outputs],
        "rank_axes": list(kept.rank_axes),
        "graphs": dict(kept.graphs),
        "constants": dict(kept.constants),
    }
    return write_file(path, lambda file: torch.save(data, file))


def load(path: str | os.PathLike[str]) -> SavedProgram:
    """Read a program that `Program.save` wrote. Nothing in the file is executed while it is read.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    SavedProgram
        ``for_rank(rank, device_mesh)`` binds it to a real mesh of the same axes and sizes.

    Raises
    ------
    SavingError
        If it is no such file, or was written by another torch or a newer spmd_lab.

    Examples
    --------
    >>> import tempfile, torch, spmd_lab as sl
    >>> program = sl.spmd_expand(torch.nn.Linear(4, 2), torch.zeros(8, 4), mesh=sl.Mesh(dp=4), batch="dp").program
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saved = sl.load(program.save(f"{folder}/linear.spmd"))
    >>> saved.mesh, [port.name for port in saved.outputs]
    (Mesh(dp=4), ['out', 'grad(weight)', 'grad(bias)'])
    """
    data = _read(Path(path))
    ours, theirs = _series(torch.__version__), _series(str(data["torch"]))
    if ours != theirs:
        raise SavingError(
            f"{path} was written by torch {data['torch']}, this is torch {torch.__version__}",
            hint=f"torch {theirs}, or expand and save the program anew: operators differ between versions",
        )
    mesh = Mesh(device_type=data["device_type"], **dict(zip(data["axes"], data["shape"], strict=True)))
    return SavedProgram(
        name=data["name"],
        mesh=mesh,
        inputs=tuple(_port_from_plain(port, mesh) for port in data["inputs"]),
        outputs=tuple(_port_from_plain(port, mesh) for port in data["outputs"]),
        torch_version=data["torch"],
        rank_axes=tuple(data["rank_axes"]),
        graphs=data["graphs"],
        constants=data["constants"],
    )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise SavingError(f"there is no file {path}", argument=f"path={str(path)!r}")
    try:
        data: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise SavingError(f"{path} is no saved program", hint="a file that program.save(path) wrote") from error
    version = data.get("spmd_lab") if isinstance(data, dict) else None
    if not isinstance(version, int):
        raise SavingError(f"{path} is no saved program", hint="a file that program.save(path) wrote")
    if version > FORMAT:
        raise SavingError(f"{path} has format {version}, this spmd_lab reads up to {FORMAT}", hint="a newer spmd_lab")
    return data


def _series(version: str) -> str:
    """``2.13`` of ``2.13.0+cpu``."""
    return ".".join(version.split(".")[:2])


def _place(mesh: Mesh, axes: tuple[str, ...], coordinate: tuple[int, ...]) -> str:
    """The name of the graph that the rank at a coordinate runs."""
    return ",".join(f"{axis}={index}" for axis, index in zip(mesh.axes, coordinate, strict=True) if axis in axes)


def _port_to_plain(port: Port) -> list[str | None]:
    return [port.name, port.role, None if port.layout is None else str(port.layout)]


def _port_from_plain(plain: list[str | None], mesh: Mesh) -> Port:
    name, role, layout = plain
    return Port(str(name), str(role), None if layout is None else Layout.parse(layout, mesh))
