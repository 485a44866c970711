"""The report of a proof: what was judged, how, and where the first error is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spmd_lab.errors import VerificationError
from spmd_lab.shown import Shown

if TYPE_CHECKING:
    from spmd_lab.expand import Step
    from spmd_lab.layout import Layout
    from spmd_lab.mesh import Mesh
    from spmd_lab.prove.tally import Largest

__all__ = ["Divergence", "OutputError", "VerifyReport"]


@dataclass(frozen=True)
class OutputError:
    """How far one output is from that of eager PyTorch.

    Parameters
    ----------
    name : str
        The output: ``out``, ``loss``, ``grad(blocks.0.q.weight)``.
    layout : Layout or None
        How it lies on the mesh; None where it is no tensor.
    max_abs_error : float
        The largest difference.
    max_scaled_error : float
        The largest difference, in proportion to the scale of what was computed.
    tolerance : float
        How large a scaled error may be.
    ok : bool
        Whether it is within the tolerance.
    """

    name: str
    layout: Layout | None
    max_abs_error: float
    max_scaled_error: float
    tolerance: float
    ok: bool


@dataclass(frozen=True)
class Divergence:
    """A place where the program is not the single-device program.

    Parameters
    ----------
    step : Step or None
        The step; None for an output that no step of its own makes.
    value : str
        The value: that of the step, one of its operands, or an output.
    rank : int or None
        The first rank that is wrong; of a pending reduction, the first of the ranks that hold its pieces.
    index : tuple of int or None
        The element, in the whole tensor; None where it is not a matter of one element.
    expected, got : object
        What should be there, and what is.
    reason : str
        In words.
    layout : Layout or None
        The layout that the value should have.
    """

    step: Step | None
    value: str
    rank: int | None
    index: tuple[int, ...] | None
    expected: object
    got: object
    reason: str
    layout: Layout | None = None

    def __str__(self) -> str:
        name = f"{self.step.name} ({self.step.op})" if self.step is not None else self.value
        where = "" if self.rank is None else f" on rank {self.rank}"
        element = "" if self.index is None else f" at {list(self.index)}"
        return f"{name}: {self.value}{where}{element}: expected {self.expected}, got {self.got}; {self.reason}"


@dataclass(frozen=True, repr=False)
class VerifyReport(Shown):
    """What came out of running the program of every rank, and comparing it with one device.

    Parameters
    ----------
    ok : bool
        Whether every value on every rank is right, every output equals that of eager PyTorch, and every layout
        follows from the collectives that are carried out.
    mesh : Mesh
        The mesh.
    ranks : tuple of int
        The ranks that were judged; all of them ran.
    outputs : tuple of OutputError
        The outputs and gradients, against eager PyTorch.
    divergences : tuple of Divergence
        What is wrong, in the order of the program; each step is judged on what it was given, so an error does not
        show again in the steps after it.
    steps_checked, values_checked : int
        How many steps, and how many of their values and redistributed operands, were judged.
    largest : Largest or None
        The value with the largest error, its scaled error, and how large that may be.
    seed : int
        Of everything that was drawn.
    draws_taken : int
        How many values shards drew for themselves (``random="local"``): they were taken as they came, where copies
        agree; everything after them was judged, but outputs against the trace, since eager PyTorch draws otherwise.
    """

    ok: bool
    mesh: Mesh
    ranks: tuple[int, ...]
    outputs: tuple[OutputError, ...]
    divergences: tuple[Divergence, ...]
    steps_checked: int
    values_checked: int
    largest: Largest | None
    seed: int
    draws_taken: int = 0

    @property
    def first_divergence(self) -> Divergence | None:
        """The first thing that is wrong; None where nothing is."""
        return self.divergences[0] if self.divergences else None

    @property
    def tolerance(self) -> float:
        """How large the scaled error of the value with the largest error may be."""
        return self.largest.tolerance if self.largest is not None else 0.0

    def raise_if_wrong(self) -> None:
        """Do nothing if the program is right.

        Raises
        ------
        VerificationError
            If it is not: names the step, its line, the rank, the element, and the layouts.
        """
        if self.ok:
            return
        first = self.first_divergence
        if first is None:
            wrong = [output for output in self.outputs if not output.ok]
            raise VerificationError(
                f"output {wrong[0].name} differs from eager PyTorch: scaled error {wrong[0].max_scaled_error:.1e}, "
                f"{wrong[0].tolerance:.1e} is allowed",
                layouts={each.name: each.layout for each in wrong if each.layout is not None},
                hint="every step is right: does the program draw numbers, or does rounding decide what it returns?",
            )
        layouts: dict[str, object] = {}
        if first.step is not None:
            layouts = {each.name: f"{each.have} -> {each.need}" for each in first.step.operands}
        if first.layout is not None:
            layouts[first.value] = first.layout
        raise VerificationError(
            str(first),
            node=None if first.step is None else f"{first.step.name}: {first.step.op}",
            source=None if first.step is None else first.step.source,
            layouts=layouts,
            hint=f"look at expansion[{first.step.name!r}]" if first.step is not None else "look at what is returned",
        )
