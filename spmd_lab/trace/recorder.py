"""Watches the user's code while it runs: which line calls torch, and which tensors it brings along."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import warnings
from bisect import bisect_right
from contextlib import contextmanager
from functools import lru_cache
from traceback import walk_stack
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import traceback as fx_traceback
from torch.overrides import TorchFunctionMode

from spmd_lab.torch_internals.fakes import is_traced_value
from spmd_lab.torch_internals.tracebacks import CHECKPOINT, checkpoint_at_hand, next_autograd_number
from spmd_lab.trace.cells import as_typed
from spmd_lab.trace.rewritten import call_traceably
from spmd_lab.trace.values import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import CodeType, FrameType

__all__ = ["KEY", "REGION", "Recorder", "is_user_code", "source_of_frame", "user_frame"]

KEY = "spmd_lab_source"
"""Where a traced node's ``meta["custom"]`` holds the index of its line."""
REGION = "spmd_lab_region"
"""Likewise the number of the checkpoint that it is in, if it is in one."""

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PROGRAMS = (os.path.join(_PACKAGE, "demo"), os.path.join(_PACKAGE, "__main__"))
_SHELL = os.path.join(os.sep, "IPython", "core", "")
_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = (os.path.join(_LIBRARY, "site-packages"), os.path.join(_LIBRARY, "dist-packages"))


def is_user_code(code: CodeType) -> bool:
    """Whether a function is neither torch's nor Python's own, nor a shell's, nor ours (but for our demonstration)."""
    return _is_users(code.co_filename)


@lru_cache(maxsize=4096)
def _is_users(file: str) -> bool:
    ours = file.startswith(_PACKAGE) and not file.startswith(_PROGRAMS)
    torchs = file.startswith((_TORCH, "<frozen")) or file == "<string>"  # what it evaluates
    pythons = file.startswith(_LIBRARY) and not file.startswith(_INSTALLED)
    return not (ours or torchs or pythons or _SHELL in file)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The nearest frame of the user's, from ``frame`` outwards."""
    while frame is not None and not is_user_code(frame.f_code):
        frame = frame.f_back
    return frame


def source_of_frame(frame: FrameType, module: str, line: int | None = None) -> Source:
    """The line at which a frame stands."""
    code, number = frame.f_code, line or frame.f_lineno
    text = linecache.getline(code.co_filename, number, frame.f_globals).strip()
    return Source(code.co_filename, number, as_typed(text), code.co_name, module)


class Recorder(TorchFunctionMode):
    """While it is on, every call of torch is noted with its line, and known tensors are exchanged.

    Parameters
    ----------
    paths : mapping of int to str
        The dotted path of each module, by ``id``.
    adopt : callable
        Takes a real tensor that the program was not given, and the frame that uses it; returns what to use instead.
    check : callable
        Looks at every call (the function, its arguments, its frame); it may refuse it.
    """

    def __init__(
        self,
        paths: Mapping[int, str],
        adopt: Callable[[torch.Tensor, FrameType | None], Any],
        check: Callable[[Callable[..., Any], tuple[Any, ...], Mapping[str, Any], FrameType | None], None],
    ) -> None:
        super().__init__()
        self.sources: list[Source] = []
        self.checkpoints: dict[Source, None] = {}
        self._checkpoint: object = None
        self._outermost: FrameType | None = None
        self._regions = 0
        self._paths = paths
        self._adopt = adopt
        self._check = check
        self._stack: list[str] = []
        self._known: dict[tuple[CodeType, int, str], int] = {}
        self._ends: list[int] = []
        self._lines: list[int] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        frame = user_frame(sys._getframe(1))  # noqa: SLF001 - inspect.currentframe() is this, and slower
        args = self._exchanged(args, frame)
        kwargs = {name: self._exchanged(value, frame) for name, value in kwargs.items()} if kwargs else {}
        line = self._line(frame)
        self._check(func, args, kwargs, frame)
        region = {REGION: self._regions} if self._is_in_checkpoint() else {}
        fx_traceback.get_current_meta()["custom"] = {KEY: line, **region}
        try:
            return call_traceably(func, args, kwargs)
        finally:
            self._note(line)

    def _line(self, frame: FrameType | None) -> int:
        if frame is None:
            return -1
        module = self._stack[-1] if self._stack else ""
        key = (frame.f_code, frame.f_lasti, module)
        line = self._known.get(key)
        if line is None:
            line = self._known[key] = len(self.sources)
            self.sources.append(source_of_frame(frame, module))
        return line

    def _is_in_checkpoint(self) -> bool:
        """Whether the program is in a checkpoint; where it has just entered one, count it and remember the line.

        A checkpoint inside of another belongs to it: the outer one computes all of it again.
        """
        found = checkpoint_at_hand()
        if found is not None and found is not self._checkpoint:
            frames = [each for each, _ in walk_stack(sys._getframe(1)) if each.f_code is CHECKPOINT]  # noqa: SLF001
            caller = user_frame(frames[0]) if frames else None
            if caller is not None:
                self.checkpoints[source_of_frame(caller, "")] = None
            if not frames or frames[-1] is not self._outermost:
                self._regions += 1
            self._outermost = frames[-1] if frames else None
        self._checkpoint = found
        return found is not None

    def _note(self, line: int) -> None:
        """Remember which autograd nodes this line has made."""
        end = next_autograd_number()
        if not self._ends or end > self._ends[-1]:
            self._ends.append(end)
            self._lines.append(line)

    def _exchanged(self, value: Any, frame: FrameType | None) -> Any:
        if is_traced_value(value):
            return value
        if isinstance(value, torch.Tensor):
            return self._adopt(value, frame)
        if type(value) in (tuple, list):
            return type(value)(self._exchanged(each, frame) for each in value)
        if type(value) is dict:
            return {key: self._exchanged(each, frame) for key, each in value.items()}
        return value

    def line_of_autograd_node(self, number: int) -> int | None:
        """The line whose call made the autograd node of this number."""
        position = bisect_right(self._ends, number)
        return self._lines[position] if position < len(self._lines) else None

    @contextmanager
    def following_modules(self) -> Iterator[None]:
        """Know in which module the program is."""
        hooks = torch.nn.modules.module
        enter = hooks.register_module_forward_pre_hook(self._enter)
        leave = hooks.register_module_forward_hook(self._leave, always_call=True)
        try:
            with warnings.catch_warnings():  # compiled modules warn of such hooks
                warnings.filterwarnings("ignore", ".*global hooks on modules")
                yield
        finally:
            enter.remove()
            leave.remove()
            self._stack.clear()
            self._outermost = None

    def _enter(self, module: torch.nn.Module, _: Any) -> None:
        self._stack.append(self._paths.get(id(module), self._stack[-1] if self._stack else ""))

    def _leave(self, *_: Any) -> None:
        if self._stack:
            self._stack.pop()
