"""What came out of one operator: plain records that go through a pipe and into a file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = ["KINDS", "CaseOutcome", "Kind", "OperatorOutcome"]

Kind = Literal["equal", "refused", "wrong", "crashed", "too slow", "no sample"]
KINDS: tuple[Kind, ...] = ("crashed", "wrong", "too slow", "refused", "equal", "no sample")
"""The worst first: an operator is what its worst case is."""


@dataclass(frozen=True)
class CaseOutcome:
    """One sample in one layout.

    Parameters
    ----------
    sample : int
        The number of the sample.
    layout : str
        The name of the layout; empty where it did not come to that.
    kind : str
        What it is.
    reason : str
        Why, in one line; empty where it is equal.
    fallbacks : tuple of str
        The operators that were gathered, each with the reason.
    gradients : bool
        Whether the program has gradients.
    """

    sample: int
    layout: str
    kind: Kind
    reason: str = ""
    fallbacks: tuple[str, ...] = ()
    gradients: bool = False


@dataclass
class OperatorOutcome:
    """One operator on all its samples and layouts.

    Parameters
    ----------
    name : str
        Its name in torch's table.
    dtype : str
        Of its samples.
    cases : list of CaseOutcome
        One per sample and layout.
    seconds : float
        How long it took.
    """

    name: str
    dtype: str = ""
    cases: list[CaseOutcome] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def kind(self) -> Kind:
        """The worst of its cases."""
        found = {case.kind for case in self.cases}
        return next((kind for kind in KINDS if kind in found), "no sample")

    @property
    def reason(self) -> str:
        """Why it is not equal: the reason that most of its worst cases have."""
        reasons = [case.reason for case in self.cases if case.kind == self.kind]
        return max(sorted(set(reasons)), key=reasons.count, default="")

    @property
    def fallbacks(self) -> list[str]:
        """What was gathered somewhere, each once."""
        return sorted({each for case in self.cases for each in case.fallbacks})

    @property
    def has_gradients(self) -> bool:
        """Whether gradients were compared too."""
        return any(case.gradients for case in self.cases)

    def as_record(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> OperatorOutcome:
        """Back from plain data."""
        cases = [CaseOutcome(**{**case, "fallbacks": tuple(case["fallbacks"])}) for case in record["cases"]]
        return cls(**{**record, "cases": cases})
