"""Imports that an interrupt does not cut in half."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["whole_imports"]


@contextmanager
def whole_imports() -> Iterator[None]:
    """Let Ctrl+C wait until what is imported inside is there.

    Python imports a package anew that it was interrupted in, but not the modules that this package had imported by
    then: they are missing in the new one. For torch that lasts until the process ends.

    Examples
    --------
    >>> with whole_imports():
    ...     import torch
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is None:  # none that Python could put back
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        for number in pressed[:1]:
            signal.raise_signal(number)
