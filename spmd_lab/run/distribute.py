"""`distribute`: from a module to one that real ranks train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from spmd_lab.binding import rank_here
from spmd_lab.errors import ArgumentError, MeshError
from spmd_lab.mesh import Mesh
from spmd_lab.rewrite import PASSES
from spmd_lab.run.agreement import exchange
from spmd_lab.run.calls import kind_of
from spmd_lab.run.module import DistributedModule
from spmd_lab.run.placing import Request
from spmd_lab.run.state import refuse_foreign
from spmd_lab.trace.arguments import Arguments, bind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

__all__ = ["distribute"]


def distribute(
    module: nn.Module,
    mesh: Mesh | DeviceMesh,
    *,
    example: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    params: Mapping[str, object] | None = None,
    inputs: Mapping[str, object] | Sequence[object] | None = None,
    batch: str | Sequence[str] | None = None,
    outputs: Mapping[str, object] | None = None,
    pending: Literal["resolve", "keep"] = "resolve",
    unsupported: Literal["replicate", "error"] = "error",
    random: Literal["exact", "local"] = "exact",
    loss: Callable[[Any], torch.Tensor] | None = None,
    global_inputs: bool = False,
    grad: Literal["mean", "sum"] = "mean",
    passes: Sequence[str | Callable[..., Any]] = tuple(PASSES),
    compiled: bool = False,
    stored: Mapping[str, object] | None = None,
    regather: bool = True,
) -> DistributedModule:
    """Expand a module over the ranks of a mesh, and return one that they train together.

    Every rank calls it, with the same arguments, in a process group of the user's. The parameters and buffers of the
    first rank are sent to the others. The user's module stays as it is. A module that is too large for one rank is made
    on ``torch.device("meta")``: what is returned gets its values from ``initialise()``, or from ``to_empty`` and a
    checkpoint.

    What it returns is called as the module is, with this rank's shards, and returns this rank's shards; what comes
    out replicated must be used in the same way on every rank. ``backward()`` leaves in each parameter's ``grad`` its
    gradient, reduced already, laid out as the parameter. What lies in a ``torch.utils.checkpoint`` is computed again in
    it, but for what was drawn or communicated: that is kept.

    Parameters
    ----------
    module : nn.Module
        The module, as for a single device.
    mesh : Mesh or DeviceMesh
        The ranks: a description of all ranks of the process group, or a real mesh of some of them.
    example : tensor or tuple
        Example arguments, with whole tensors; a tuple stands for several. They may be fake.
    kwargs : mapping, optional
        Example keyword arguments.
    params, inputs, batch, outputs, pending, unsupported, random
        As in `expand`.
    loss : callable, optional
        As in `trace`. The module then returns the loss, which is that of all ranks together, and what it returned
        before, without gradient. Tensors that the loss closes over are whole ones, read anew in every call.
    global_inputs : bool
        Whether calls pass whole tensors, the same on every rank.
    grad : str
        "mean": what comes out divided along the batch axis gives a loss that is the mean of a rank's own part, and
        gradients of parameters are averaged, as under ``DistributedDataParallel``. "sum": they are summed. The batch
        axis is that of ``batch``; without it, those that divide dim 0 of an input. Nothing of this concerns what
        comes out whole, as a loss inside the module does.
    passes : sequence of str or callable
        As in `Program.rewrite`; by default all of ours.
    compiled : bool
        Whether ``torch.compile`` makes the code of both halves, at the first call of each kind. Collectives stay those
        of the program, and random numbers those of eager operators; it needs a C++ compiler. What is saved for the
        backward is then freed at its end, not as it is read.
    stored, regather
        As in `expand`: how parameters, their gradients, and with them the state of an optimizer, are divided among
        ranks. ``stored=fsdp("dp")`` is what FSDP does; with ``regather=False`` parameters stay whole from the forward
        to the backward, as under ZeRO-2.

    Returns
    -------
    DistributedModule
        Its parameters are DTensors under the names that they have in the module.

    Raises
    ------
    SpmdLabError
        If there is no process group or not of this size, or an argument fits neither the module nor the mesh.

    Examples
    --------
    >>> import torch, spmd_lab as sl
    >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    >>> model = sl.distribute(torch.nn.Linear(4, 2), sl.Mesh(dp=1), example=torch.zeros(8, 4), batch="dp")
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> model(torch.ones(8, 4)).square().mean().backward()
    >>> optimizer.step()
    >>> torch.distributed.destroy_process_group()
    """
    _refuse_unknown(module, {"pending": pending, "unsupported": unsupported, "random": random, "grad": grad})
    if not dist.is_available() or not dist.is_initialized():
        raise MeshError(
            "there is no process group to run on",
            argument="mesh",
            hint="torch.distributed.init_process_group(), in processes started by torchrun or another launcher",
        )
    arguments = bind(module, example if isinstance(example, tuple) else (example,), kwargs or {})
    device_mesh = _device_mesh(mesh, module)
    request = Request(
        module=module,
        loss=loss,
        mesh=Mesh.from_device_mesh(device_mesh),
        device_mesh=device_mesh,
        rank=rank_here(device_mesh),
        params=params or {},
        inputs=inputs or {},
        batch=batch,
        outputs=outputs or {},
        pending=pending,
        unsupported=unsupported,
        random=random,
        global_inputs=global_inputs,
        grad=grad,
        passes=tuple(passes),
        compiled=compiled,
        stored=stored or {},
        regather=regather,
    )
    _refuse_differences(request, arguments)
    return DistributedModule(request, arguments)


_CHOICES = {
    "pending": ("resolve", "keep"),
    "unsupported": ("replicate", "error"),
    "random": ("exact", "local"),
    "grad": ("mean", "sum"),
}


def _refuse_unknown(module: object, chosen: Mapping[str, str]) -> None:
    if isinstance(module, DistributedModule):
        raise ArgumentError(
            "the module is distributed already", argument="module", hint="distribute the module that it was made of"
        )
    if not isinstance(module, nn.Module):
        raise ArgumentError(
            f"{type(module).__name__} is no module",
            argument="module",
            hint="a torch.nn.Module; a function has no state",
        )
    for name, child in module.named_modules():
        if isinstance(child, (DistributedModule, DistributedDataParallel)):
            raise ArgumentError(
                f"{name or 'the module'} is distributed already, as {type(child).__name__}",
                argument="module",
                hint="distribute what is inside it, or call the two one after the other",
            )
    for name, value in chosen.items():
        if value not in _CHOICES[name]:
            first, second = _CHOICES[name]
            raise ArgumentError(
                f"{name}={value!r} is unknown", argument=f"{name}={value!r}", hint=f'"{first}" or "{second}"'
            )
    refuse_foreign(module)


def _device_mesh(mesh: Mesh | DeviceMesh, module: nn.Module) -> DeviceMesh:
    """The real mesh: the user's, or one of all ranks."""
    if isinstance(mesh, DeviceMesh):
        return mesh
    if not isinstance(mesh, Mesh):
        raise MeshError(f"{type(mesh).__name__} is no mesh", argument="mesh", hint="sl.Mesh(dp=2), or a DeviceMesh")
    if mesh.size != dist.get_world_size():
        raise MeshError(
            f"{mesh!r} has {mesh.size} ranks, the process group has {dist.get_world_size()}",
            argument=f"mesh={mesh!r}",
            hint="a mesh of as many ranks, or a DeviceMesh of some of them",
        )
    devices = (tensor.device.type for tensor in [*module.parameters(), *module.buffers()] if not tensor.is_meta)
    device = next(devices, "cuda" if "nccl" in dist.get_backend() else "cpu")
    return init_device_mesh(mesh.device_type or device, mesh.shape, mesh_dim_names=mesh.axes)


def _refuse_differences(request: Request, arguments: Arguments) -> None:
    """Refuse ranks that do not distribute the same module in the same way: they would wait for one another."""
    tensors = [*request.module.named_parameters(), *request.module.named_buffers()]
    said = {
        "parameters and buffers": [(name, tuple(each.shape), each.dtype, each.requires_grad) for name, each in tensors],
        "example": kind_of(arguments, (), is_whole=True).tensors,
        "placements": repr((request.params, request.stored, request.inputs, request.batch, request.outputs)),
        "options": (
            request.pending,
            request.unsupported,
            request.random,
            request.grad,
            request.global_inputs,
            request.loss is not None,
            request.compiled,
            request.regather,
            tuple(each if isinstance(each, str) else getattr(each, "__qualname__", "") for each in request.passes),
        ),
    }
    for rank, other in enumerate(exchange(said, request.device_mesh)):
        for what, here in said.items():
            if other[what] != here:
                raise ArgumentError(
                    f"rank {rank} of {request.mesh!r} distributes with other {what} than rank {request.rank}",
                    argument="module" if what == "parameters and buffers" else what,
                    layouts={f"rank {rank}": other[what], f"rank {request.rank}": here},
                    hint="every rank calls distribute with the same arguments",
                )
