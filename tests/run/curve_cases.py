"""Loss curves of real models on real ranks, and training that goes on elsewhere from a checkpoint."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoints
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import spmd_lab as sl
from tests.models.zoo import ZOO
from tests.run.on_rank import states_equal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from tests.models.specimen import Specimen

STEPS = 20

MESHES: dict[str, tuple[dict[str, int], bool]] = {
    "dp=2": ({"dp": 2}, False),
    "tp=2": ({"tp": 2}, True),
    "2x2": ({"dp": 2, "tp": 2}, True),
    "4x1": ({"dp": 4, "tp": 1}, True),
}


def its_loss(out: Any) -> torch.Tensor:
    """That of a model that computes it itself; of the whole batch, wherever its parts are."""
    return out.loss  # type: ignore[no-any-return]


def distributed(specimen: Specimen, mesh: str, stored: Mapping[str, object] | None = None) -> sl.run.DistributedModule:  # type: ignore[name-defined]
    """The model on a mesh of all ranks; calls pass the whole batch."""
    axes, divides = MESHES[mesh]
    return sl.distribute(
        specimen.model,
        sl.Mesh(**axes),
        kwargs=specimen.kwargs,
        batch="dp" if "dp" in axes else None,
        params=specimen.rules if divides else {},
        stored=stored,
        loss=its_loss,
        global_inputs=True,
    )


def losses(module: nn.Module, kwargs: Mapping[str, torch.Tensor], steps: int, optimizer: Any = None) -> list[float]:
    """The loss before each step of Adam; every step sees the tokens in another order."""
    optimizer = optimizer or torch.optim.Adam(module.parameters(), lr=1e-3)
    curve = []
    for step in range(steps):
        shifted = {name: tensor.roll(step, 0) for name, tensor in kwargs.items()}
        optimizer.zero_grad()
        out = module(**shifted)
        loss = out[0] if isinstance(out, tuple) else out.loss
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    return curve


def curve(name: str, mesh: str, prepare: Callable[[nn.Module], object] | None = None) -> None:
    """The loss falls as it does on a single device."""
    torch.manual_seed(3)
    specimen = ZOO[name]()
    specimen.model.train()
    if prepare is not None:
        prepare(specimen.model)
    alone = copy.deepcopy(specimen.model)
    torch.manual_seed(7)
    found = losses(distributed(specimen, mesh), specimen.kwargs, STEPS)
    torch.manual_seed(7)
    expected = losses(alone, specimen.kwargs, STEPS)
    assert all(abs(one - other) <= 1e-4 * abs(other) for one, other in zip(found, expected, strict=True)), [
        f"{one} {other}" for one, other in zip(found, expected, strict=True)
    ]
    assert expected[-1] < 0.97 * expected[0], "nothing was learnt"
    assert all(one != other for one, other in pairwise(found))


def drop(model: nn.Module) -> None:
    """Let a GPT-2 drop a tenth of everything, as it does by default."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.1


def resume(folder: str) -> None:
    """A checkpoint goes on elsewhere as if nothing had happened, optimizer included.

    It was written on 2x2, of parameters that rest divided further than they are used, and goes on on 4x1.
    """
    torch.manual_seed(3)
    specimen = ZOO["gpt2"]()
    alone = copy.deepcopy(specimen.model)
    first = distributed(specimen, "2x2", sl.fsdp("dp"))
    stepper = torch.optim.Adam(first.parameters(), lr=1e-3)
    begun = losses(first, specimen.kwargs, 5, stepper)
    model_state, optimizer_state = get_state_dict(first, stepper)
    checkpoints.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)
    dist.barrier()
    torch.manual_seed(4)
    second = distributed(ZOO["gpt2"](), "4x1")
    stepper = torch.optim.Adam(second.parameters(), lr=1e-3)
    model_state, optimizer_state = get_state_dict(second, stepper)
    state = {"model": model_state, "optimizer": optimizer_state}
    checkpoints.load(state, checkpoint_id=folder)
    set_state_dict(second, stepper, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    resumed = losses(second, specimen.kwargs, 5, stepper)
    by_itself = torch.optim.Adam(alone.parameters(), lr=1e-3)
    expected = losses(alone, specimen.kwargs, 5, by_itself) + losses(alone, specimen.kwargs, 5, by_itself)
    torch.testing.assert_close(torch.tensor(begun + resumed), torch.tensor(expected), rtol=1e-4, atol=0)
    assert [name for name, _ in second.named_parameters()] == [name for name, _ in alone.named_parameters()]


def clipped() -> None:
    """``clip_grad_norm_`` sees the norm of the whole gradient, whatever divides it."""
    torch.manual_seed(3)
    specimen = ZOO["gpt2"]()
    alone = copy.deepcopy(specimen.model).double()
    specimen.model.double()
    model = distributed(specimen, "2x2")
    norms = []
    for module in (model, alone):
        losses(module, specimen.kwargs, 1, torch.optim.SGD(module.parameters(), lr=0.0))
        norms.append(torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5))
    whole = norms[0].full_tensor() if hasattr(norms[0], "full_tensor") else norms[0]
    torch.testing.assert_close(whole, norms[1], rtol=1e-10, atol=0)
    states_equal(model, alone, gradients=True)
