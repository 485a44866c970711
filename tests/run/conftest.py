"""Pools of real ranks, started when a test first wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import spmd_lab as sl
from tests.run.pool import RankPool

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[RankPool]:
    pool = RankPool(2)
    yield pool
    pool.stop()


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[RankPool]:
    pool = RankPool(4)
    yield pool
    pool.stop()


@pytest.fixture(scope="session")
def ranks() -> Iterator[sl.Ranks]:
    """Two ranks that stay, as in a notebook; what fails ends them, and they start anew."""
    with sl.Ranks(2, device="cpu", patience_s=30.0) as found:
        yield found
