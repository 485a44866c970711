"""The export of the user's program: run under watch on fake tensors, once to look and once to record."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.fx import traceback as fx_traceback

from spmd_lab.errors import SpmdLabError
from spmd_lab.torch_internals.checks import checks_answered
from spmd_lab.torch_internals.export import JointGraph, export_joint, said_to_be_traced
from spmd_lab.torch_internals.fakes import (
    counted_mode,
    fake_like,
    is_fake,
    is_fake_of,
    is_traced_value,
    quiet_failures,
)
from spmd_lab.trace.closures import Reached, name_in_frame
from spmd_lab.trace.graph import CLOSING
from spmd_lab.trace.recorder import Recorder
from spmd_lab.trace.refusals import check_call, check_gradient, check_random, random_state_kept, refusal
from spmd_lab.trace.trees import Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from spmd_lab.trace.program import UserProgram

__all__ = ["Export", "MoreTensorsError", "exported"]


class MoreTensorsError(Exception):
    """The program uses tensors that were not found before it ran."""

    def __init__(self, found: Sequence[Reached]) -> None:
        super().__init__("tensors were found while tracing")
        self.found = found


class Export(nn.Module):
    """The program as a module without parameters: flat tensors in, a tuple of tensors out.

    It says ``done`` for each operator that is exported.
    """

    def __init__(self, program: UserProgram, backward: bool, done: Callable[[], None], adopts: bool = True) -> None:
        super().__init__()
        self._program = (program,)
        self.mode = counted_mode(done)
        self.differentiated = tuple(
            index for index, slot in enumerate(program.slots) if backward and slot.value.requires_grad
        )
        device = _device([slot.value for slot in program.slots])
        self.fakes = [
            fake_like(self.mode, slot.value, device, index in self.differentiated)
            for index, slot in enumerate(program.slots)
        ]
        self._paths = program.module_paths()
        self.recorder = Recorder(self._paths, self._known, check_call)
        self.returned = Tree((), next)
        self._adopts = adopts
        self._exchange: dict[int, torch.Tensor] = {}
        self._more: dict[int, tuple[Reached, torch.Tensor]] = {}

    @property
    def program(self) -> UserProgram:
        """What is exported."""
        return self._program[0]

    def forward(self, *flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the user's program on the tensors of the export."""
        self._exchange = self.program.exchange(flat)
        results = self.program.run(flat, self._watched)
        check_random({}, None)
        tensors = results.tensors(lambda tensor: self._known(tensor, None))
        if self._more:
            raise MoreTensorsError([reached for reached, _ in self._more.values()])
        self.returned = results.returned
        meta = fx_traceback.get_current_meta()
        meta["custom"] = {CLOSING: True}
        if self.program.loss is not None:
            tensors = [tensors[0], *(tensor.detach() for tensor in tensors[1:])]
        apart = tuple(tensor.clone() for tensor in tensors)
        meta.pop("custom")
        return apart

    @contextmanager
    def _watched(self) -> Iterator[None]:
        with said_to_be_traced(), checks_answered(), self.recorder.following_modules(), self.recorder:
            yield

    def _known(self, tensor: torch.Tensor, frame: FrameType | None) -> torch.Tensor:
        """What stands for a tensor that the program did not make."""
        known = self._exchange.get(id(tensor))
        if known is not None:
            check_gradient(tensor, known, frame)
            return known
        if is_traced_value(tensor) or is_fake_of(tensor, self.mode):
            return tensor
        if not self._adopts:
            lifted: torch.Tensor = torch.ops.aten.lift_fresh_copy.default(tensor)
            return lifted
        if id(tensor) not in self._more:
            reached = (name_in_frame(tensor, frame, self._paths) or f"constant_{len(self._more)}", tensor)
            self._more[id(tensor)] = (reached, _stand_in(tensor, self.fakes))
        return self._more[id(tensor)][1]


def _stand_in(tensor: torch.Tensor, others: Sequence[torch.Tensor]) -> torch.Tensor:
    """A tensor of the export with the sizes of another."""
    device = others[0].device if others else torch.device("cpu")
    new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return new.requires_grad_(tensor.requires_grad)


def _device(tensors: Sequence[torch.Tensor]) -> torch.device:
    """Where all tensors of the export stand: with the real ones; else with the fake ones; else on the CPU."""
    real = [tensor.device for tensor in tensors if tensor.device.type != "meta" and not is_fake(tensor)]
    fake = [tensor.device for tensor in tensors if tensor.device.type != "meta"]
    candidates = real or fake or [torch.device("cpu")]
    return next((device for device in candidates if device.type != "cpu"), candidates[0])


def exported(export: Export) -> JointGraph:
    """The joint graph of a program; everything that is global is as it was afterwards."""

    def run() -> JointGraph:
        with (
            quiet_failures(),
            random_state_kept(),
            torch.compiler.set_stance("force_eager"),  # parts of the program may be compiled
            torch.enable_grad(),
            fx_traceback.preserve_node_meta(),
        ):
            return export_joint(export, export.fakes)

    try:
        return run()
    except MoreTensorsError:
        raise
    except Exception as error:
        raise refusal(error, export.program.name, run) from (None if isinstance(error, SpmdLabError) else error)
