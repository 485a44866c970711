"""What has been judged so far, and what was found to be wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spmd_lab.prove.tolerance import tolerance

if TYPE_CHECKING:
    from spmd_lab.layout import Layout
    from spmd_lab.prove.judge import Fault, Verdict

__all__ = ["Largest", "Tally", "WrongValue"]


class WrongValue(NamedTuple):
    """A value that is not what its operator makes of its operands."""

    step: str
    value: str
    layout: Layout
    fault: Fault


class Largest(NamedTuple):
    """The value with the largest error, in proportion to what was allowed."""

    value: str
    scaled_error: float
    tolerance: float

    @property
    def share(self) -> float:
        """The error as a part of what is allowed; infinite where none is and there is one."""
        if self.tolerance == 0:
            return 0.0 if self.scaled_error == 0 else float("inf")
        return self.scaled_error / self.tolerance


class Tally:
    """The verdicts on the values of a program.

    Attributes
    ----------
    wrong : list of WrongValue
        In the order in which they were found.
    judged : int
        How many values were compared.
    steps : set of str
        The steps that they belong to.
    largest : Largest or None
        The one that is closest to its tolerance, or furthest beyond.
    """

    def __init__(self) -> None:
        self.wrong: list[WrongValue] = []
        self.judged = 0
        self.steps: set[str] = set()
        self.largest: Largest | None = None

    def add(self, step: str, value: str, layout: Layout, verdict: Verdict) -> None:
        """One more verdict."""
        self.judged += 1
        self.steps.add(step)
        if verdict.fault is not None:
            self.wrong.append(WrongValue(step, value, layout, verdict.fault))
        found = Largest(value, verdict.max_scaled_error, tolerance(layout.dtype))
        if self.largest is None or found.share > self.largest.share:
            self.largest = found
