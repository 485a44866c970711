"""A line of a table of measurements."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Row"]


class Row(NamedTuple):
    """What was measured, our time and the peer's, the ratio that is allowed, and the unit of both times."""

    what: str
    ours: float
    peer: float
    allowed: float
    unit: str = "s"

    def __str__(self) -> str:
        times = " ".join(f"{each:8.3f} {self.unit}" for each in (self.ours, self.peer))
        return f"{self.what:<58} {times} {self.ours / self.peer:7.3f}  (at most {self.allowed})"
