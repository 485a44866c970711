"""An error as a shell shows it: the lines of the user that led to it, and none of ours or of torch's."""

# The shell has no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from contextlib import contextmanager
from traceback import walk_tb
from types import TracebackType
from typing import TYPE_CHECKING, Any

from IPython import get_ipython

from spmd_lab.trace.recorder import is_user_code

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["traceback_of"]


def traceback_of(error: BaseException) -> list[str]:
    """The traceback of an error and of its cause, in the form that the shell is set to.

    In ``%xmode Verbose`` it is whole, and ``%debug`` finds every frame in any mode.
    """
    shown: Any = get_ipython().InteractiveTB
    if shown.mode == "Verbose":
        return _lines(shown, error)
    with _without_inner_frames(error.__cause__):
        return _lines(shown, error, _of_user(error.__traceback__))


def _lines(shown: Any, error: BaseException, frames: TracebackType | None = None) -> list[str]:
    lines: list[str] = shown.structured_traceback(type(error), error, frames or error.__traceback__)
    return lines


def _of_user(frames: TracebackType | None) -> TracebackType | None:
    """The frames of a traceback that run the user's code."""
    found: TracebackType | None = None
    for frame, line in reversed(list(walk_tb(frames))):
        if is_user_code(frame.f_code):
            found = TracebackType(found, frame, frame.f_lasti, line)
    return found


@contextmanager
def _without_inner_frames(error: BaseException | None) -> Iterator[None]:
    """For as long as it is shown, an error that is the cause of another has the user's frames alone."""
    if error is None:
        yield
        return
    whole = error.__traceback__
    error.__traceback__ = _of_user(whole) or whole
    try:
        yield
    finally:
        error.__traceback__ = whole
