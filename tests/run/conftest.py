"""Pools of real ranks, started when a test first wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

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
