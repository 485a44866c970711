"""What the proof says of a broken program, and whether anything is broken at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch

from spmd_lab.prove.inputs import global_values
from spmd_lab.prove.shares import local_values
from spmd_lab.prove.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    import spmd_lab as sl
    from spmd_lab.prove import VerifyReport
    from tests.prove.faults.bank import Fault

__all__ = ["Outcome", "named_step", "outcome_of", "values_differ"]

_OF_VALUES = frozenset(
    {"early relu", "wrong offset", "swapped ranks", "swapped shards", "gathered in another order", "wrong number"}
    | {"unmasked", "swapped operands", "scaled"}
)
"""Kinds that leave the layouts as they are: such a mistake is none where no value changes either."""


class Outcome(Enum):
    """What becomes of a fault."""

    NAMED = "named exactly"
    OTHER = "named another"
    UNSEEN = "unseen"
    HARMLESS = "changed nothing"


def outcome_of(fault: Fault) -> Outcome:
    """Verify the broken program, and see which step is named first."""
    broken = fault.broken
    report = broken.verify()
    if report.ok:
        harmless = fault.kind in _OF_VALUES and not values_differ(fault.program, broken)
        return Outcome.HARMLESS if harmless else Outcome.UNSEEN
    return Outcome.NAMED if named_step(report) == fault.mistake.step else Outcome.OTHER


def named_step(report: VerifyReport) -> str | None:
    """The step that a report names first."""
    first = report.first_divergence
    return None if first is None or first.step is None else first.step.name


@dataclass
class _Notes:
    """Everything that the ranks hold on their way, with the names of the values."""

    values: dict[str, Sequence[Any]] = field(default_factory=dict)

    def value(self, name: str, tensors: Sequence[Any]) -> None:
        self.values[name] = tensors

    def operand(self, step: str, index: int, before: Sequence[Any], after: Sequence[Any]) -> None:
        self.values[f"{step}[{index}]"] = after


def values_differ(right: sl.Program, broken: sl.Program) -> bool:
    """Whether any rank ever holds other values, beyond rounding: this asks nothing of the proof's judges."""
    one, other = _held(right), _held(broken)
    size = max((float(each.abs().max()) for each in one.values() if each.numel()), default=0.0)
    for name, expected in one.items():
        got = other[name]
        if got.shape != expected.shape:
            return True
        difference = torch.where(got == expected, 0.0, (got - expected).abs()).nan_to_num(nan=torch.inf)
        allowed = 1e-5 * expected.abs().nan_to_num(posinf=0.0).max() + 1e-8 * size if expected.numel() else 0.0
        if bool((difference > allowed).any()):
            return True
    return False


def _held(program: sl.Program) -> dict[str, torch.Tensor]:
    """What each rank holds of each value, by the name of the value and the rank."""
    expansion = program.expansion
    notes = _Notes()
    with torch.no_grad():
        shares = local_values(global_values(expansion.traced, None, 0), expansion.input_layouts, 0)
        graphs = [program.for_rank(rank) for rank in range(expansion.mesh.size)]
        given = [[each[rank] for each in shares] for rank in range(expansion.mesh.size)]
        results = simulate(graphs, expansion.mesh, given, notes)
        notes.values["returned"] = list(zip(*results, strict=True))
    return {
        f"{name} {place}": tensor.double()
        for name, tensors in notes.values.items()
        for place, tensor in enumerate(_flat(tensors))
        if isinstance(tensor, torch.Tensor)
    }


def _flat(tensors: Sequence[Any]) -> list[Any]:
    return [each for part in tensors for each in (part if isinstance(part, (tuple, list)) else (part,))]
