"""What an operator says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch._library.custom_ops import CustomOpDef
from torch._ops import OpOverload, OpOverloadPacket

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "OpOverload",
    "argument_names",
    "by_position",
    "default_of",
    "has_argument",
    "is_operator",
    "is_random",
    "is_uninitialised",
    "is_view",
    "loses_gradients",
    "may_alias",
    "operator_name",
    "overloads_of",
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


def argument_names(op: OpOverload) -> tuple[str, ...]:
    """The names of all arguments, in order."""
    return tuple(each.name for each in op._schema.arguments)


def by_position(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, each by its position where it has one; a call that lacks some is left as it is.

    Examples
    --------
    >>> by_position(torch.ops.aten.sum.dim_IntList, ("x",), {"dtype": None, "dim": [0]})
    (('x', [0]), {'dtype': None})
    """
    places = [each for each in op._schema.arguments if not each.kwarg_only]
    given = {**{each.name: value for each, value in zip(places, args, strict=False)}, **kwargs}
    while places and places[-1].name not in given:
        places.pop()
    if len(args) > len(places) or not all(each.has_default_value() or each.name in given for each in places):
        return tuple(args), dict(kwargs)
    return tuple(given.pop(each.name, each.default_value) for each in places), given


def overloads_of(value: object) -> tuple[OpOverload, ...]:
    """The overloads that a value means: an operator has itself, what ``torch.library.custom_op`` made has one.

    Examples
    --------
    >>> overloads_of(torch.ops.aten.relu.default), overloads_of(torch.relu)
    ((<OpOverload(op='aten.relu', overload='default')>,), ())
    """
    if isinstance(value, CustomOpDef):
        return (value._opoverload,)
    if isinstance(value, OpOverloadPacket):
        return tuple(getattr(value, name) for name in value.overloads())
    return (value,) if isinstance(value, OpOverload) else ()


def loses_gradients(target: object) -> bool:
    """Whether what is called is an operator that nobody has told how to be differentiated.

    Torch warns of it when the backward of an eager program comes by, and may give no gradient, or a wrong one.

    Examples
    --------
    >>> loses_gradients(torch.ops.aten.relu.default), loses_gradients(torch.relu)
    (False, False)
    """
    if not isinstance(target, (OpOverload, OpOverloadPacket)):
        return False
    return any(
        not torch._library.utils.is_builtin(op)
        and not any(_has_kernel(op, key) for key in ("Autograd", "AutogradCPU", "CompositeImplicitAutograd"))
        for op in overloads_of(target)
    )


def may_alias(target: object) -> bool:
    """Whether what is called may give back memory of its arguments.

    Examples
    --------
    >>> aten = torch.ops.aten
    >>> may_alias(aten.mm.default), may_alias(aten.t.default), may_alias(aten.reshape.default)
    (False, True, True)
    """
    if not isinstance(target, OpOverload) or not torch._library.utils.is_builtin(target):
        return True
    return is_view(target) or _has_kernel(target, "CompositeImplicitAutograd")


def is_view(op: OpOverload) -> bool:
    """Whether an operator says that it gives back memory of its arguments."""
    return any(each.alias_info is not None for each in op._schema.returns)


def _has_kernel(op: OpOverload, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key))
