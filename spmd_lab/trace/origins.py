"""Where in the user's code an error, or a call, comes from."""

from __future__ import annotations

import inspect
import sys
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from spmd_lab.trace.recorder import Recorder, is_user_code, source_of_frame, user_frame

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from spmd_lab.trace.values import Source

__all__ = ["calling_line", "first_call", "function_called", "line_of", "went_through"]


def line_of(error: BaseException) -> Source | None:
    """The innermost line of the user's that an error went through."""
    lines = [each for each in walk_tb(error.__traceback__) if is_user_code(each[0].f_code)]
    return source_of_frame(lines[-1][0], "", lines[-1][1]) if lines else None


def calling_line() -> Source | None:
    """The user's line that asked for the trace."""
    frame = user_frame(inspect.currentframe())
    return None if frame is None else source_of_frame(frame, "")


def went_through(error: BaseException, code: CodeType) -> bool:
    """Whether an error came out of a function with this code."""
    return any(frame.f_code is code for frame, _ in walk_tb(error.__traceback__))


def function_called(error: BaseException) -> str:
    """The name of the function of torch's that the program called last."""
    watching = Recorder.__torch_function__.__code__
    called = [frame.f_locals["func"] for frame, _ in walk_tb(error.__traceback__) if frame.f_code is watching]
    return getattr(called[-1], "__name__", "") if called else ""


def first_call(codes: set[CodeType], again: Callable[[], Any]) -> Source | None:
    """The user's line that first calls one of some functions, found by running a program once more."""
    found: list[Source] = []

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in codes and not found:
            caller = user_frame(frame.f_back)
            if caller is not None:
                found.append(source_of_frame(caller, ""))

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        again()
    except Exception:  # the run that failed may fail again: only its calls matter
        pass
    finally:
        sys.setprofile(before)
    return found[0] if found else None
