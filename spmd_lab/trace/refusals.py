"""What cannot be traced, said in the user's terms: the line, the reason, and what to try."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, TracebackType
from typing import Any

import torch
import torch.utils.checkpoint

from spmd_lab.errors import SpmdLabError, TraceError
from spmd_lab.torch_internals.fakes import data_dependence
from spmd_lab.trace.recorder import is_user_code, source_of_frame, user_frame
from spmd_lab.trace.values import Source

__all__ = ["check_loss", "refusal", "seed_is_kept"]

_SEED = 0x51D_AB5_0DD_5EED
"""A seed that no one sets: where it is gone after the program ran, the program has set another."""


def check_loss(loss: Any) -> None:
    """Refuse a loss that no backward can start from.

    Raises
    ------
    TraceError
        If it is no tensor of one element with a floating dtype.
    """
    if not isinstance(loss, torch.Tensor):
        raise TraceError(
            f"the loss is no tensor but {type(loss).__name__}",
            argument="loss",
            hint="a function that returns a scalar tensor, as F.cross_entropy does",
        )
    if loss.numel() != 1 or not (loss.is_floating_point() or loss.is_complex()):
        raise TraceError(
            f"the loss is no scalar: its shape is {list(loss.shape)}, its dtype {str(loss.dtype).removeprefix('torch.')}",
            argument="loss",
            hint="reduce it, as .mean() or .sum() do",
        )


def refusal(error: BaseException, name: str) -> SpmdLabError:
    """The error to raise instead of one that came up while ``name`` was traced."""
    if isinstance(error, SpmdLabError):
        return error
    source = _line_of(error)
    kind = data_dependence(error)
    if kind == "value":
        return TraceError(
            f"{name} needs the value of a tensor to go on, so its program is not one graph",
            source=source,
            hint="torch.where or torch.cond for a branch, a Python number for .item(), "
            "or a custom operator (torch.library) around this part",
        )
    if kind == "shape":
        return TraceError(
            f"{name} makes a tensor whose shape depends on data, so its program is not one graph",
            source=source,
            hint="torch.where(mask, x, 0) instead of x[mask]: a shape that is known beforehand",
        )
    first = str(error).strip().splitlines() or [""]
    return TraceError(
        f"{name} fails while it is traced: {type(error).__name__}: {first[0]}",
        source=source,
        hint="run it eagerly on the same arguments first; the cause stands above this error",
    )


def _line_of(error: BaseException) -> Source | None:
    """The innermost line of the user's that an error went through."""
    found: Source | None = None
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        if is_user_code(traceback.tb_frame.f_code):
            found = source_of_frame(traceback.tb_frame, "", traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


@contextmanager
def seed_is_kept(again: Callable[[], Any]) -> Iterator[None]:
    """Keep the random state as it was, and refuse a program that sets it.

    Parameters
    ----------
    again : callable
        Runs the program once more, to find the line.
    """
    generator = torch.random.default_generator
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        generator.manual_seed(_SEED)
        yield
        if generator.initial_seed() == _SEED:
            return
        source = first_call({torch.random.manual_seed.__code__, torch.random.set_rng_state.__code__, torch.random.seed.__code__}, again)
    raise TraceError(
        "a seed is set inside the program: it would vanish from the graph",
        source=source,
        hint="call torch.manual_seed before the program, not inside it",
    )


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
