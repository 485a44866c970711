"""The operators that were equal in the last full run, so that a test can tell when one is lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.coverage.outcome import OperatorOutcome

__all__ = ["known_equal", "remember"]

_FILE = Path(__file__).with_name("known_equal.txt")


def known_equal() -> frozenset[str]:
    """Their names."""
    return frozenset(_FILE.read_text().split())


def remember(outcomes: Sequence[OperatorOutcome]) -> None:
    """Write down which ones are equal."""
    _FILE.write_text("".join(f"{name}\n" for name in sorted(each.name for each in outcomes if each.kind == "equal")))
