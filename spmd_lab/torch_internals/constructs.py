"""Branches and loops of torch's own: operators that run programs which they are given."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, NamedTuple

from torch._ops import HigherOrderOperator

if TYPE_CHECKING:
    from types import CodeType

__all__ = ["Construct", "construct_behind", "is_higher_order"]

_FOLDER = "torch._higher_order_ops."
_CONSTRUCTS = frozenset({"associative_scan", "cond", "map", "scan", "while_loop"})


def is_higher_order(target: object) -> bool:
    """Whether the target of a node runs programs of its own."""
    return isinstance(target, HigherOrderOperator)


class Construct(NamedTuple):
    """A branch or a loop: its name, as ``torch.cond``, and the code of the function that a program calls."""

    name: str
    code: CodeType


def construct_behind(error: BaseException) -> Construct | None:
    """The construct inside of which an error came up."""
    traceback = error.__traceback__
    while traceback is not None:
        names = traceback.tb_frame.f_globals
        name = str(names.get("__name__", "")).removeprefix(_FOLDER)
        if name in _CONSTRUCTS and name in names:
            return Construct(f"torch.{name}", inspect.unwrap(names[name]).__code__)
        traceback = traceback.tb_next
    return None
