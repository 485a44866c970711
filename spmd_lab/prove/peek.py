"""The numbers that each rank holds of every value, for those who watch a program run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from spmd_lab.prove.inputs import global_values
from spmd_lab.prove.shares import local_values
from spmd_lab.prove.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spmd_lab.rebuild import Program

__all__ = ["peek"]

_SHOWN = 4


def peek(
    program: Program, inputs: Mapping[str, torch.Tensor] | Sequence[torch.Tensor] | None = None, seed: int = 0
) -> dict[str, tuple[str, ...]]:
    """Run every rank in this process, and note what each holds.

    Parameters
    ----------
    program : Program
        The program.
    inputs, seed
        As in `verify`.

    Returns
    -------
    dict
        By the name of an input or of a value of the traced program: its first numbers on every rank, as text.
    """
    expansion = program.expansion
    values = global_values(expansion.traced, inputs, seed)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        held = local_values(values, expansion.input_layouts, seed)
        watcher = _Watcher()
        for each, tensors in zip(expansion.traced.inputs, held, strict=True):
            watcher.value(each.name, tensors)
        graphs = [program.for_rank(rank) for rank in range(expansion.mesh.size)]
        simulate(graphs, expansion.mesh, [[each[rank] for each in held] for rank in range(len(graphs))], watcher)
    return watcher.seen


class _Watcher:
    """Takes down what it is told."""

    def __init__(self) -> None:
        self.seen: dict[str, tuple[str, ...]] = {}

    def value(self, name: str, tensors: Sequence[Any]) -> None:
        self.seen[name] = tuple(_text(each) for each in tensors)

    def operand(self, step: str, index: int, before: Sequence[Any], after: Sequence[Any]) -> None:
        """What happens on the way is not shown."""


def _text(value: Any) -> str:
    """``0.25, -1.5, 3, … (of 64)``."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    flat = value.detach().flatten()[:_SHOWN].tolist()
    told = ", ".join(f"{each:.4g}" if isinstance(each, float) else str(each) for each in flat)
    return f"{told}, … (of {value.numel():,})" if value.numel() > _SHOWN else told or "nothing"
