"""The arguments of a call, named by the signature of what is called."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from spmd_lab.errors import TraceError
from spmd_lab.trace.trees import Leaf, Tree, flatten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["Arguments", "bind", "name_of"]


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call.

    Parameters
    ----------
    leaves : tuple of Leaf
        What is in them, in the order of the signature.
    rebuild : callable
        Takes an iterator over as many values and returns ``args, kwargs``.
    """

    leaves: tuple[Leaf, ...]
    rebuild: Callable[[Iterator[Any]], tuple[tuple[Any, ...], dict[str, Any]]]

    @property
    def tensors(self) -> tuple[Leaf, ...]:
        """The leaves that are tensors."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf.value, torch.Tensor))

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with their tensors exchanged, in order; every other value stays."""
        new = iter(tensors)
        return self.rebuild(next(new) if isinstance(leaf.value, torch.Tensor) else leaf.value for leaf in self.leaves)


def name_of(fn: Any) -> str:
    """What a message calls a module or a function."""
    if isinstance(fn, torch.nn.Module):
        return type(fn).__name__
    inner = getattr(fn, "func", fn)
    return getattr(inner, "__name__", type(inner).__name__)


def bind(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """Name the arguments of ``fn(*args, **kwargs)`` by its signature.

    Raises
    ------
    TraceError
        If they do not fit the signature.

    Examples
    --------
    >>> bind(lambda x, *rest, scale: x, [1, 2], {"scale": 3}).leaves
    (Leaf(name='x', value=1), Leaf(name='rest[0]', value=2), Leaf(name='scale', value=3))
    """
    called = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        return _unnamed(args, kwargs)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TraceError(
            f"{name_of(fn)} cannot be called so: {error}",
            argument=_call_text(args, kwargs),
            hint=f"its signature is {name_of(fn)}{_short(signature)}",
        ) from None
    trees: dict[str, Tree | dict[str, Tree]] = {}
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            trees[name] = {key: flatten(each, key) for key, each in value.items()}
        else:
            trees[name] = flatten(value, name)

    def rebuild(values: Iterator[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        new = {name: _rebuilt(tree, values) for name, tree in trees.items()}
        again = inspect.BoundArguments(signature, new)
        return again.args, again.kwargs

    return Arguments(tuple(leaf for tree in trees.values() for leaf in _leaves(tree)), rebuild)


def _unnamed(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """For a callable that does not tell its signature."""
    first, second = flatten(tuple(args), "args"), {key: flatten(each, key) for key, each in kwargs.items()}
    leaves = (*first.leaves, *_leaves(second))
    return Arguments(leaves, lambda values: (first.rebuild(values), _rebuilt(second, values)))


def _leaves(tree: Tree | dict[str, Tree]) -> tuple[Leaf, ...]:
    return tree.leaves if isinstance(tree, Tree) else tuple(leaf for each in tree.values() for leaf in each.leaves)


def _rebuilt(tree: Tree | dict[str, Tree], values: Iterator[Any]) -> Any:
    if isinstance(tree, Tree):
        return tree.rebuild(values)
    return {key: each.rebuild(values) for key, each in tree.items()}


def _short(signature: inspect.Signature) -> str:
    """The signature without annotations: names and defaults."""
    parameters = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def _call_text(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    kinds = [type(value).__name__ for value in args]
    return ", ".join([*kinds, *(f"{name}={type(value).__name__}" for name, value in kwargs.items())]) or "none"
