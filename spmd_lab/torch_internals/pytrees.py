"""Containers that torch knows how to take apart and put together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Parts", "registered_parts"]

Parts = tuple[list[tuple[Any, Any]], "Callable[[list[Any]], Any]"]
"""The children of a container, each with its key, and how to rebuild it from new ones."""


def registered_parts(value: object) -> Parts | None:
    """One level of a container whose type is registered with torch; None for any other value.

    A key is a string for what has names (dict entries, attributes) and an int for what has positions.
    """
    definition = pytree.SUPPORTED_NODES.get(type(value))
    if definition is None:
        return None
    children, context = definition.flatten_fn(value)
    keys: list[Any] = list(range(len(children)))
    if definition.flatten_with_keys_fn is not None:
        keyed, _ = definition.flatten_with_keys_fn(value)
        keys = [_plain_key(key) for key, _ in keyed]
    return list(zip(keys, children, strict=True)), lambda parts: definition.unflatten_fn(parts, context)


def _plain_key(key: object) -> Any:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return str(key)
