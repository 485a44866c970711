"""What belongs to modules, as a tree of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Module", "module_names", "module_tree", "without_containers"]

T = TypeVar("T")


@dataclass
class Module(Generic[T]):
    """A module: what is its own, and the modules in it."""

    path: str
    items: list[T] = field(default_factory=list)
    children: dict[str, Module[T]] = field(default_factory=dict)

    def child(self, name: str) -> Module[T]:
        """The module of this name in it, a new one where there is none."""
        path = f"{self.path}.{name}" if self.path else name
        return self.children.setdefault(name, Module(path))

    def everything(self) -> Iterator[T]:
        """What is its own, then what belongs to the modules in it."""
        yield from self.items
        for child in self.children.values():
            yield from child.everything()


def module_tree(items: Iterable[T], path_of: Callable[[T], str]) -> Module[T]:
    """The outermost module, with everything in it.

    Examples
    --------
    >>> tree = module_tree(["a.b", "a", "a.c"], lambda path: path)
    >>> list(tree.children), list(tree.child("a").everything())
    (['a'], ['a', 'a.b', 'a.c'])
    """
    root: Module[T] = Module("")
    known = {"": root}
    for item in items:
        path = path_of(item)
        if path not in known:
            module = root
            for name in path.split("."):
                module = module.child(name)
            known[path] = module
        known[path].items.append(item)
    return root


def without_containers(module: Module[T]) -> list[Module[T]]:
    """The modules in a module; a list of blocks, and what only wraps one other, give way to what is in them.

    A block may be a list itself: one in a list is a block.
    """
    found: list[Module[T]] = []
    for name, child in module.children.items():
        is_list = all(map(str.isdecimal, child.children)) and not name.isdecimal()
        is_container = not child.items and (is_list or len(child.children) == 1)
        found.extend(without_containers(child) if is_container else [child])
    return found


def module_names(paths: tuple[str, ...], parent: str, itself: str = "itself") -> str:
    """The names of modules within their parent; of more than three, the first and the last.

    Examples
    --------
    >>> module_names(("blocks.0", "blocks.1"), "blocks"), module_names(tuple(f"b.{i}" for i in range(9)), "")
    ('0, 1', 'b.0 – b.8')
    """
    names = [path.removeprefix(f"{parent}.") if parent else path or itself for path in paths]
    return ", ".join(names) if len(names) <= _NAMED else f"{names[0]} – {names[-1]}"


_NAMED = 3
