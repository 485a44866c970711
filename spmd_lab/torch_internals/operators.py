"""What an operator says of itself."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch._ops import OpOverload

__all__ = [
    "OpOverload",
    "default_of",
    "has_argument",
    "is_operator",
    "is_random",
    "is_uninitialised",
    "operator_name",
    "position_of",
]

_UNINITIALISED = (
    "aten::empty",
    "aten::new_empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty_strided",
)


def operator_name(op: OpOverload) -> str:
    """``aten.mm.default``: namespace, operator and overload."""
    return str(op)


def is_operator(target: object) -> TypeGuard[OpOverload]:
    """Whether the target of a node is an operator of the dispatcher."""
    return isinstance(target, OpOverload)


def is_random(op: OpOverload) -> bool:
    """Whether an operator may draw random numbers."""
    return torch.Tag.nondeterministic_seeded in op.tags


def is_uninitialised(op: OpOverload) -> bool:
    """Whether an operator returns memory as it finds it."""
    return op._schema.name in _UNINITIALISED


def position_of(op: OpOverload, argument: str) -> int | None:
    """The position of an argument; None for keyword-only ones."""
    for position, each in enumerate(op._schema.arguments):
        if each.name == argument:
            return None if each.kwarg_only else position
    raise KeyError(argument)


def has_argument(op: OpOverload, argument: str) -> bool:
    """Whether an operator takes an argument of that name."""
    return any(each.name == argument for each in op._schema.arguments)


def default_of(op: OpOverload, argument: str) -> Any:
    """The default value of an argument."""
    return next(each.default_value for each in op._schema.arguments if each.name == argument)
