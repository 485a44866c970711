"""How far long work has come: a bar where somebody watches; nothing below two seconds, and where nobody does."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from multiprocessing import parent_process
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Bar", "counting", "progress"]

T = TypeVar("T")

_SILENT = 2.0
"""Seconds in which nobody wants to know."""


class Bar(Protocol):
    """What shows how far the work is; one of tqdm's."""

    def update(self, n: int) -> object:
        """Be further by some."""

    def close(self) -> object:
        """Be gone."""


def progress(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """The items, one after the other; where they take long, a bar says how many have passed.

    The bar goes with the loop, however that ends: it is finished, left, or interrupted.

    Parameters
    ----------
    items : iterable
        What to go through.
    what : str
        What is done with them.
    total : int, optional
        How many there are, where that is known.

    Examples
    --------
    >>> list(progress(["a", "b"], "spelling"))
    ['a', 'b']
    """
    with counting(what, total) as done:
        for item in items:
            yield item
            done()


@contextmanager
def counting(what: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """For work that is no loop: call what this gives whenever a piece is done.

    Parameters
    ----------
    what, total
        As in `progress`.

    Examples
    --------
    >>> with counting("counting") as done:
    ...     done()
    """
    count = _Count(what, total)
    try:
        yield count
    finally:
        count.close()


class _Count:
    """How many pieces are done; it shows itself once the work has taken long."""

    def __init__(self, what: str, total: int | None) -> None:
        self._what = what
        self._total = total
        self._start = monotonic()
        self._done = 0
        self._asked = False
        self._bar: Bar | None = None

    def __call__(self) -> None:
        self._done += 1
        if self._bar is not None:
            self._bar.update(1)
        elif not self._asked and monotonic() - self._start > _SILENT:
            self._asked = True
            self._bar = _bar(self._what, self._total, self._done)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _bar(what: str, total: int | None, done: int) -> Bar | None:
    """A bar in the notebook or on the terminal; None in a rank, in a child of this process, or without either."""
    if os.environ.get("WORLD_SIZE", "1") != "1" or parent_process() is not None:
        return None
    if "ipykernel" in sys.modules:
        return _notebook_bar(what, total, done)
    return _terminal_bar(what, total, done) if sys.stderr.isatty() else None


def _notebook_bar(what: str, total: int | None, done: int) -> Bar | None:
    from spmd_lab.jupyter.bar import notebook_bar

    return notebook_bar(what, total, done)


def _terminal_bar(what: str, total: int | None, done: int) -> Bar:
    from tqdm.std import tqdm

    class Watchless(tqdm):  # type: ignore[misc]
        monitor_interval = 0  # no thread that watches the bars

    return Watchless(desc=what, total=total, initial=done, leave=False, unit="", miniters=1, dynamic_ncols=True)
