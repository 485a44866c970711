"""What eager PyTorch makes of the same values, and how much of it is noise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from spmd_lab.prove.pieces import Whole
from spmd_lab.prove.tolerance import shaken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spmd_lab.trace.values import TracedGraph

__all__ = ["eager_outputs", "shaken_outputs"]


def eager_outputs(traced: TracedGraph, values: Sequence[torch.Tensor], seed: int) -> tuple[Any, ...]:
    """The outputs and gradients of the user's program, run on one device; the state of random numbers stays."""
    devices = sorted({value.device.index for value in values if value.device.type == "cuda"})
    with torch.random.fork_rng(devices), torch.enable_grad():
        torch.manual_seed(seed)
        outputs = traced.reference.run(list(values))
    return tuple(output.detach() if isinstance(output, torch.Tensor) else output for output in outputs)


def shaken_outputs(traced: TracedGraph, inputs: Sequence[Whole], seed: int) -> tuple[Any, ...]:
    """The outputs of the traced program when every value on its way is changed by a few units in its last place.

    Parameters
    ----------
    traced : TracedGraph
        The program of one device.
    inputs : sequence of Whole
        Its inputs, with the magnitude of what they were reduced from.
    seed : int
        Each seed shakes otherwise.
    """
    generators: dict[torch.device, torch.Generator] = {}

    def shake(value: Any, scale: torch.Tensor | None = None) -> Any:  # noqa: ANN401
        if isinstance(value, (tuple, list)):
            return type(value)(shake(each) for each in value)
        if not isinstance(value, torch.Tensor):
            return value
        if value.device not in generators:
            generators[value.device] = torch.Generator(value.device).manual_seed(seed)
        return shaken(value, scale, generators[value.device])

    return _Shaking(traced.graph_module, shake).run(*[shake(each.value, each.scale) for each in inputs])  # type: ignore[no-any-return]


class _Shaking(fx.Interpreter):
    """Runs a graph, shaking what each operator makes."""

    def __init__(self, module: fx.GraphModule, shake: Any) -> None:  # noqa: ANN401
        super().__init__(module)
        self.shake = shake

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """Run one operator."""
        return self.shake(super().call_function(target, args, kwargs))
