"""Operators that write into their arguments, as operators that return what they would have written."""

from __future__ import annotations

import operator
import re
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import fx
    from torch._ops import OpOverload

__all__ = [
    "call_functional_forms",
    "functional_form",
    "functional_form_called",
    "returns_what_it_writes",
    "whole_arguments_written",
]

_LIBRARIES: dict[str, torch.library.Library] = {}
_SUFFIX = "_functional"
_ALIAS = re.compile(r"\(\w+!?(?: -> [\w|]+)?\)")


@contextmanager
def whole_arguments_written() -> Iterator[None]:
    """Export operators that write into their arguments by what they are given, not by the memory behind it."""
    import torch._inductor.config as config

    with config.patch(enable_auto_functionalized_v2=False):
        yield


@cache
def functional_form(op: OpOverload) -> OpOverload:
    """The operator that returns, in one list, what ``op`` returns and then the new values of what it writes into.

    One that writes into nothing is its own. The others are defined beside it, where this is first asked for:
    ``mylib::scale_`` has the form ``mylib::scale__functional``.

    Examples
    --------
    >>> functional_form(torch.ops.aten.relu.default)
    <OpOverload(op='aten.relu', overload='default')>
    """
    if not op._schema.is_mutable or torch._library.utils.is_builtin(op):
        return op
    namespace, name = op._schema.name.split("::")
    overload = op._overloadname if op._overloadname != "default" else ""
    new_name = "_".join(filter(None, (name, overload))) + _SUFFIX
    arguments = _ALIAS.sub("", str(op._schema).partition("(")[2].rpartition(") ->")[0])
    if namespace not in _LIBRARIES:
        _LIBRARIES[namespace] = torch.library.Library(namespace, "FRAGMENT")
    library = _LIBRARIES[namespace]
    library.define(f"{new_name}({arguments}) -> Tensor[]", tags=op.tags)
    library.impl(new_name, _FunctionalKernel(op), "CompositeExplicitAutograd")
    found: OpOverload = getattr(getattr(torch.ops, namespace), new_name).default
    return found


def functional_form_called(namespace: str, name: str) -> OpOverload | None:
    """The functional form of this name, defined if it is not yet; None where there is no operator that it is one of."""
    writing = getattr(getattr(torch.ops, namespace), name.removesuffix(_SUFFIX), None)
    op = getattr(writing, "default", None)
    if not name.endswith(_SUFFIX) or op is None or not op._schema.is_mutable:
        return None
    return functional_form(op)


class _FunctionalKernel:
    """Runs an operator on copies of what it writes into."""

    def __init__(self, op: OpOverload) -> None:
        self._op = op
        self.__name__ = f"{op._schema.name}_functional"

    def __call__(self, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        given = _by_name(self._op, args, kwargs)
        written = {name: _copied(given[name]) for name in _written(self._op)}
        returned = self._op(**{**given, **written})
        return [*_flat(returned), *_flat(list(written.values()))]


def _by_name(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    arguments = op._schema.arguments
    positional = dict(zip((each.name for each in arguments), args, strict=False))
    return {each.name: {**positional, **kwargs}.get(each.name, each.default_value) for each in arguments}


def _written(op: OpOverload) -> list[str]:
    return [each.name for each in op._schema.arguments if each.alias_info is not None and each.alias_info.is_write]


def _copied(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_copied(each) for each in value]
    return value.clone() if isinstance(value, torch.Tensor) else value


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in _flat(each)]
    return [value] if isinstance(value, torch.Tensor) else []


def returns_what_it_writes(node: fx.Node) -> str | None:
    """The operator behind a node that an export leaves where an operator returns the argument it writes into."""
    return str(node.args[0]) if node.target is torch.ops.higher_order.auto_functionalized_v2 else None


def call_functional_forms(graph_module: fx.GraphModule) -> None:
    """Put functional forms where an export says "this operator, but into copies"."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.target is torch.ops.higher_order.auto_functionalized:
            _call_functional_form(graph, node)


def _call_functional_form(graph: fx.Graph, node: fx.Node) -> None:
    """``auto_functionalized(op, **arguments)`` gives what ``op`` returns, then what it writes, one per argument."""
    op: Any = node.args[0]
    values: Any = node.meta["val"]
    positional = [each.name for each in op._schema.arguments if not each.kwarg_only]
    args = tuple(node.kwargs[name] for name in positional)
    kwargs = {name: value for name, value in node.kwargs.items() if name not in positional}
    with graph.inserting_before(node):
        made = graph.call_function(functional_form(op), args, kwargs)
    made.meta = {**node.meta, "val": _flat(values)}
    for reader in list(node.users):
        position = int(reader.args[1])  # type: ignore[arg-type]
        start = len(_flat(values[:position]))
        if isinstance(values[position], (list, tuple)):
            _read_directly(graph, reader, made, start)
        else:
            reader.args = (made, start)
    graph.erase_node(node)


def _read_directly(graph: fx.Graph, reader: fx.Node, made: fx.Node, start: int) -> None:
    """Let those who read from a list of tensors, that is itself read from the outputs, read from the outputs."""
    for user in list(reader.users):
        assert user.target is operator.getitem
        user.args = (made, start + int(user.args[1]))  # type: ignore[arg-type]
    graph.erase_node(reader)
