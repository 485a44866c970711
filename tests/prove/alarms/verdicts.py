"""What the proof says of a random program that is right."""

from __future__ import annotations

import warnings
from enum import Enum

from spmd_lab.errors import SpmdLabError
from tests.prove.alarms.cases import case

__all__ = ["Verdict", "verdict_of"]


class Verdict(Enum):
    """What became of a case; one that is refused is no program, and no alarm."""

    PROVED = "proved"
    REFUSED = "refused"
    ALARM = "false alarm"
    CRASH = "crash"


def verdict_of(number: int, seed: int = 0) -> tuple[Verdict, str]:
    """Draw a case, expand it and prove it; what is to be said of it if it is not proved."""
    drawn = case(number, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = drawn.program()
        except SpmdLabError as error:
            return Verdict.REFUSED, f"{drawn}\n  {type(error).__name__}: {str(error).splitlines()[0]}"
        try:
            report = program.verify()
            report.raise_if_wrong()
        except SpmdLabError as error:
            return Verdict.ALARM, f"{drawn}\n  {error}"
        except Exception as error:
            return Verdict.CRASH, f"{drawn}\n  {error!r}"
    return Verdict.PROVED, str(drawn)
