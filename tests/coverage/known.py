"""What came out for each operator in the last full run, so that a test can tell when one gets worse."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.coverage.outcome import Kind, OperatorOutcome

__all__ = ["known_kinds", "remember"]

_FILE = Path(__file__).with_name("known.txt")


def known_kinds() -> dict[str, Kind]:
    """The kind of each operator."""
    pairs = [line.split(": ") for line in _FILE.read_text().splitlines()]
    return dict(pairs)


def remember(outcomes: Sequence[OperatorOutcome]) -> None:
    """Write the kinds down."""
    _FILE.write_text("".join(f"{each.name}: {each.kind}\n" for each in outcomes))
