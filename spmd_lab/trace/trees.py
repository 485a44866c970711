"""Nested values, taken apart into named leaves and put together again."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from spmd_lab.torch_internals.pytrees import registered_parts

__all__ = ["Leaf", "Tree", "flatten", "join"]

_DEEPEST = 24
_ATOMS = (torch.Tensor, torch.nn.Module, torch.Generator, str, bytes, int, float, complex, bool, type(None))


@dataclass(frozen=True)
class Leaf:
    """A value that is no container, and the path to it: ``batch.mask``, ``xs[0]``."""

    name: str
    value: Any


@dataclass(frozen=True)
class Tree:
    """A nested value, taken apart.

    Parameters
    ----------
    leaves : tuple of Leaf
        Its leaves, in order.
    rebuild : callable
        Takes an iterator over as many values as there are leaves, and puts the whole together from them.
    """

    leaves: tuple[Leaf, ...]
    rebuild: Callable[[Iterator[Any]], Any]


def join(path: str, key: object) -> str:
    """The path of a child: ``batch.mask`` for a name, ``xs[0]`` for a position.

    Examples
    --------
    >>> join("batch", "mask"), join("xs", 0), join("", "mask")
    ('batch.mask', 'xs[0]', 'mask')
    """
    if isinstance(key, str):
        return f"{path}.{key}" if path else key
    return f"{path}[{key!r}]"


def flatten(value: Any, path: str) -> Tree:
    """Take a nested value apart.

    Lists, tuples, mappings, dataclasses, and every type registered with ``torch.utils`` as a pytree are containers;
    so is any other object that holds tensors in its attributes. What is inside of itself is a leaf there.

    Examples
    --------
    >>> tree = flatten({"a": [1, 2], "b": None}, "batch")
    >>> [leaf.name for leaf in tree.leaves]
    ['batch.a[0]', 'batch.a[1]', 'batch.b']
    >>> tree.rebuild(iter([5, 6, 7]))
    {'a': [5, 6], 'b': 7}
    """
    return _flatten(value, path, ())


def _flatten(value: Any, path: str, around: tuple[Any, ...]) -> Tree:
    inside_itself = any(value is each for each in around)
    parts = None if inside_itself or len(around) == _DEEPEST else _parts(value)
    if parts is None:
        return Tree((Leaf(path, value),), next)
    children, assemble = parts
    trees = [_flatten(child, join(path, key), (*around, value)) for key, child in children]
    leaves = tuple(leaf for tree in trees for leaf in tree.leaves)
    rebuilds = [tree.rebuild for tree in trees]
    return Tree(leaves, lambda values: assemble([rebuild(values) for rebuild in rebuilds]))


_Parts = tuple[list[tuple[Any, Any]], Callable[[list[Any]], Any]]


def _parts(value: Any) -> _Parts | None:
    """The children of one level, and how to rebuild it."""
    if isinstance(value, (*_ATOMS, type)) or callable(value):
        return None
    registered = registered_parts(value)
    if isinstance(value, Mapping):
        keys = list(value)
        if registered is not None and [key for key, _ in registered[0]] in (keys, list(range(len(keys)))):
            values = [child for _, child in registered[0]]
            return list(zip(keys, values, strict=True)), registered[1]
        return [(key, value[key]) for key in keys], lambda parts: _with_items(value, keys, parts)
    if registered is not None:
        return registered
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return [(name, getattr(value, name)) for name in names], lambda parts: _with_attributes(value, names, parts)
    attributes = getattr(value, "__dict__", None)
    if attributes and any(isinstance(each, torch.Tensor) for each in attributes.values()):
        names = list(attributes)
        return list(attributes.items()), lambda parts: _with_attributes(value, names, parts)
    return None


def _with_items(mapping: Any, keys: list[Any], values: list[Any]) -> Any:
    new = copy.copy(mapping)
    for key, value in zip(keys, values, strict=True):
        new[key] = value
    return new


def _with_attributes(holder: Any, names: list[str], values: list[Any]) -> Any:
    new = copy.copy(holder)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(new, name, value)
    return new
