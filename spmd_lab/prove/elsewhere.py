"""A proof on ranks that run elsewhere: what they tell is judged as if they had been simulated."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from spmd_lab.prove.simulate import Reports

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from spmd_lab.prove.one_rank import Report
    from spmd_lab.prove.simulate import Observer
    from spmd_lab.rebuild import Program

__all__ = ["Elsewhere", "replay"]


@runtime_checkable
class Elsewhere(Protocol):
    """Ranks that run programs somewhere else."""

    size: int

    def observe(
        self, program: Program, inputs: Sequence[Sequence[torch.Tensor]], seed: int
    ) -> tuple[list[Sequence[Report]], list[tuple[Any, ...]]]:
        """Run the program of each rank on its flat inputs: what each reports on its way, and what each returns."""


def replay(told: Sequence[Sequence[Report]], observer: Observer) -> None:
    """Pass on what ranks have reported, in the order in which each did.

    Raises
    ------
    SimulationError
        If some rank has not reported what another has.
    """
    reports = Reports(len(told), observer)
    for together in zip_longest(*told):
        for rank, report in enumerate(together):
            if report is not None:
                reports.add(rank, report)
    reports.close()
