"""Programs that real ranks run: single redistributions, and transformers with loss and backward."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

import spmd_lab as sl
from tests.models.zoo import ZOO
from tests.run.on_rank import assembled, close, mine, states_equal, whole_of, world_mesh

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from tests.models.specimen import Specimen

CPU_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool)


# --- redistributions ----------------------------------------------------------------------------


def redistributed(
    have: str, need: str, shape: Sequence[int], dtype: torch.dtype, pieces: Sequence[torch.Tensor]
) -> Any:
    """The whole tensor that ranks hold after a redistribution, from what each holds before, and what ran."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = sl.Mesh(dp=size)
    traced = sl.trace(lambda x: x.clone(), torch.empty(shape, dtype=dtype), backward=False)
    before = sl.Layout.parse(have, mesh, shape, dtype)
    after = sl.Layout.parse(need, mesh, shape, dtype)
    expansion = sl.expand(traced, mesh, inputs=[list(before.placements)], outputs={"out": list(after.placements)})
    (out,) = expansion.program.for_rank(rank, world_mesh(dp=size))(pieces[rank])
    return assembled(out, after), [each.kind for each in expansion.collectives]


def moves() -> None:
    """Every kind of move between sharded and whole layouts, in every dtype, from tensors with holes too."""
    size = dist.get_world_size()
    kinds = set()
    for dtype in CPU_DTYPES:
        for shape in ((4, 8), (5, 3)):
            whole = (torch.arange(shape[0] * shape[1]).reshape(shape) % 3 - int(dtype != torch.uint8)).to(dtype)
            for have, need in (("a/dp b", "a b"), ("a b/dp", "a b"), ("a b", "a/dp b"), ("a/dp b", "a b/dp")):
                layout = sl.Layout.parse(have, sl.Mesh(dp=size), shape, dtype)
                pieces = [whole[layout.slices(rank)].t().contiguous().t() for rank in range(size)]
                found, ran = redistributed(have, need, shape, dtype, pieces)
                assert torch.equal(found, whole), (dtype, shape, have, need)
                kinds.update(ran)
    assert kinds == {"all_gather", "all_to_all"}


REDUCTIONS = {
    "sum": lambda each: each.sum(0),
    "avg": lambda each: each.mean(0),
    "max": lambda each: each.amax(0),
    "min": lambda each: each.amin(0),
    "product": lambda each: each.prod(0),
}


def reductions() -> None:
    """Every kind of pending reduction, to whole and to divided layouts, even and uneven ones."""
    size = dist.get_world_size()
    kinds = set()
    for reduction, reduce in REDUCTIONS.items():
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
            if (dtype == torch.bool and reduction in ("sum", "avg")) or (dtype == torch.int64 and reduction == "avg"):
                continue
            for need in ("a b", "a/dp b", "a b/dp"):
                pieces = [((torch.arange(15).reshape(5, 3) * (rank + 3)) % 4 - 1).to(dtype) for rank in range(size)]
                expected = reduce(torch.stack(pieces)).to(dtype)
                found, ran = redistributed(f"a b {{{reduction}: dp}}", need, (5, 3), dtype, pieces)
                assert torch.equal(found, expected), (reduction, dtype, need)
                kinds.update(ran)
    assert kinds == {"all_reduce", "reduce_scatter"}


# --- transformers -------------------------------------------------------------------------------

AXES = {"dp": ("dp",), "tp": ("tp",), "dp x tp": ("dp", "tp")}


@cache
def specimen(name: str) -> tuple[Specimen, sl.TracedGraph]:
    torch.manual_seed(0)
    made = ZOO[name]()
    return made, made.trace()


def placed(name: str, mesh: sl.Mesh) -> Mapping[str, Any]:
    """How a model is divided on a mesh."""
    rules = specimen(name)[0].rules
    return {"batch": "dp" if "dp" in mesh.axes else None, "params": rules if "tp" in mesh.axes else {}}


def real_mesh(axes: Sequence[str]) -> DeviceMesh:
    size = dist.get_world_size()
    return world_mesh(**({axes[0]: size} if len(axes) == 1 else {axes[0]: 2, axes[1]: size // 2}))


def transformer(name: str, axes: Sequence[str]) -> int:
    """Every output and every gradient of the program of a training step equals the eager single-device run."""
    device_mesh, rank = real_mesh(axes), dist.get_rank()
    mesh = sl.Mesh.from_device_mesh(device_mesh)
    model, traced = specimen(name)
    program = sl.expand(traced, mesh, **placed(name, mesh)).program
    local = [
        value[layout.slices(rank)].detach() for value, layout in zip(traced.values, program.input_layouts, strict=True)
    ]
    found = program.for_rank(rank, device_mesh)(*local)
    model.model.zero_grad()
    expected = model.model(**model.kwargs)
    expected.loss.backward()
    whole = {
        output.name: assembled(value, layout)
        for output, value, layout in zip(traced.outputs, found, program.output_layouts, strict=True)
        if layout is not None
    }
    close(whole["loss"], expected.loss.detach(), "loss")
    close(whole["out.logits"], expected.logits.detach(), "logits")
    gradients = dict(model.model.named_parameters())
    assert {f"grad({each})" for each in gradients} <= whole.keys()
    for each, parameter in gradients.items():
        close(whole[f"grad({each})"], parameter.grad, f"grad({each})")
    return len(program.expansion.collectives)


def distributed_transformer(name: str, axes: Sequence[str]) -> None:
    """A distributed transformer returns the library's own output and trains as the plain one does."""
    device_mesh = real_mesh(axes)
    mesh = sl.Mesh.from_device_mesh(device_mesh)
    model, _ = specimen(name)
    distributed = sl.distribute(model.model, device_mesh, kwargs=model.kwargs, **placed(name, mesh))
    layouts = {
        found.name: layout
        for found, layout in zip(distributed.expansion.traced.inputs, distributed.expansion.input_layouts, strict=True)
    }
    rank = dist.get_rank()
    kwargs = {key: value[layouts[key].slices(rank)] for key, value in model.kwargs.items()}
    found, expected = distributed(**kwargs), model.model(**model.kwargs)
    assert type(found) is type(expected)
    assert list(found) == list(expected)
    found.loss.backward()
    model.model.zero_grad()
    expected.loss.backward()
    close(found.loss.detach(), expected.loss.detach(), "loss")
    states_equal(distributed, model.model, gradients=True)
    torch.optim.AdamW(distributed.parameters(), lr=1e-3).step()
    assert not torch.equal(
        whole_of(next(distributed.parameters())).float(), next(model.model.parameters()).detach().float()
    )


def part_of_the_world() -> None:
    """A mesh of some ranks: two halves of the world, each with a module of its own."""
    size, rank = dist.get_world_size(), dist.get_rank()
    mesh = world_mesh(pp=2, dp=size // 2)["dp"]
    half = rank // (size // 2)
    torch.manual_seed(half)
    model = torch.nn.Linear(6, 4).double()
    x = torch.randn(8, 6).double()
    distributed = sl.distribute(model, mesh, example=x, batch="dp")
    part = x.chunk(size // 2)[rank % (size // 2)]
    distributed(part).square().mean().backward()
    model(x).square().mean().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(distributed.get_parameter(name).grad.to_local(), parameter.grad)
    assert mine(x).shape[0] != part.shape[0]
