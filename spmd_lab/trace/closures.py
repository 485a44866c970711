"""What a function brings along besides its arguments: the tensors and modules that its code can reach."""

from __future__ import annotations

import dis
import functools
import inspect
import os
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from spmd_lab.trace.recorder import is_user_code
from spmd_lab.trace.trees import join

__all__ = ["Reached", "name_in_frame", "reachable"]

Reached = tuple[str, Any]
"""The name by which the code knows a tensor or a module, and that tensor or module."""

_DEEPEST = 8
_MOST_OBJECTS = 20_000
_LONGEST = 1_000
_NEAR = 4
_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))
_ATOMS = (type, types.ModuleType, str, bytes, int, float, type(None))
_PLAIN = sys.stdlib_module_names - {"__main__", "types"} | {"torch", "numpy"}
_LIBRARY = tuple({os.path.abspath(sysconfig.get_path(kind)) + os.sep for kind in ("stdlib", "purelib", "platlib")})


def reachable(fn: Any, loss: Any = None) -> Iterator[Reached]:
    """The tensors and modules that a function (or a module's forward) and a loss bring along, with their names.

    Closure cells, globals (also of nested functions), defaults, partials, bound methods, containers, plain tensor
    attributes of modules and of other objects are followed; a module is given as a whole, ``fn`` itself under the
    empty name.
    """
    walk = _Walk()
    yield from walk.callable("", fn, _DEEPEST)
    yield from walk.callable("loss", loss, _DEEPEST)


class _Walk:
    """One walk; it visits every object once."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._kept: list[Any] = []

    def _first(self, value: Any) -> bool:
        if id(value) in self._seen:
            return False
        self._seen.add(id(value))
        self._kept.append(value)
        return True

    def callable(self, name: str, function: Any, depth: int) -> Iterator[Reached]:
        """What a callable brings along; ``name`` is that of a module in it."""
        if isinstance(function, torch.nn.Module):
            yield from self.value(name, function, depth)
        elif depth <= 0 or function is None or not self._first(function):
            return
        elif isinstance(function, functools.partial):
            yield from self.callable(name, function.func, depth - 1)
            for index, value in enumerate(function.args):
                yield from self.value(f"bound[{index}]", value, depth - 1)
            for keyword, value in function.keywords.items():
                yield from self.value(keyword, value, depth - 1)
        elif isinstance(function, types.MethodType):
            yield from self.value(name, function.__self__, depth - 1)
            yield from self.callable(name, function.__func__, depth - 1)
        elif isinstance(function, types.FunctionType):
            yield from self.function(function, depth)
        elif not isinstance(function, (type, types.BuiltinFunctionType)):
            yield from self.attributes(name, function, depth - 1)
            yield from self.callable(name, inspect.getattr_static(type(function), "__call__", None), depth - 1)

    def function(self, function: types.FunctionType, depth: int) -> Iterator[Reached]:
        """What a function reaches through its cells, its globals and its defaults."""
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            yield from self.value(name, _content(cell), depth - 1)
        if is_user_code(code) and not code.co_filename.startswith(_LIBRARY):
            for name in _global_names(code):
                yield from self.value(name, function.__globals__.get(name), depth - 1)
        for name, default in _defaults(function):
            yield from self.value(name, default, depth - 1)
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            yield from self.callable("", wrapped, depth - 1)

    def module(self, path: str, module: torch.nn.Module, depth: int) -> Iterator[Reached]:
        """The plain tensor attributes of a module, and what its forward closes over."""
        kinds = set()
        for name, child in module.named_modules(prefix=path):
            for attribute, value in vars(child).items():
                if attribute not in _OF_EVERY_MODULE:
                    yield from self.value(join(name, attribute), value, depth - 1)
            kinds.add(type(child))
        for kind in sorted(kinds, key=lambda each: each.__qualname__):
            yield from self.callable(path, inspect.getattr_static(kind, "forward", None), depth - 1)

    def value(self, name: str, value: Any, depth: int) -> Iterator[Reached]:
        """A value that the code knows by name, and what is inside it."""
        if isinstance(value, torch.Tensor):
            if self._first(value):
                yield name, value
        elif isinstance(value, torch.nn.Module):
            if self._first(value):
                yield name, value
                yield from self.module(name, value, depth - 1)
        elif depth <= 0 or isinstance(value, _ATOMS):
            return
        elif isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            yield from self.callable(name, value, depth - 1)
        elif isinstance(value, (Mapping, list, tuple)):
            if len(value) <= _LONGEST and self._first(value):
                for key, child in value.items() if isinstance(value, Mapping) else enumerate(value):
                    yield from self.value(join(name, key), child, depth - 1)
        else:
            yield from self.object(name, value, depth - 1)

    def object(self, name: str, value: Any, depth: int) -> Iterator[Reached]:
        """What is in an object that is neither torch's nor Python's own."""
        plain = type(value).__module__.partition(".")[0] in _PLAIN or len(self._kept) > _MOST_OBJECTS
        if depth > 0 and not plain and self._first(value):
            yield from self.attributes(name, value, depth)

    def attributes(self, name: str, value: Any, depth: int) -> Iterator[Reached]:
        """What an object holds under names."""
        for attribute, child in list(getattr(value, "__dict__", {}).items()):
            yield from self.value(join(name, attribute), child, depth - 1)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _global_names(code: types.CodeType) -> list[str]:
    """The globals that a function and the functions inside it name, in order."""
    names = [
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    ]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _global_names(constant)
    return list(dict.fromkeys(names))


def _defaults(function: types.FunctionType) -> list[Reached]:
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    pairs = list(zip(positional[len(positional) - len(defaults) :], defaults, strict=True))
    return [*pairs, *(function.__kwdefaults__ or {}).items()]


def name_in_frame(tensor: torch.Tensor, frame: types.FrameType | None, paths: Mapping[int, str]) -> str | None:
    """The name by which a frame knows a tensor: a variable, or an attribute or entry of one.

    Parameters
    ----------
    paths : mapping of int to str
        The dotted path of each module, by ``id``: an attribute of a module goes by the path of that module.
    """
    if frame is None:
        return None
    names = _global_names(frame.f_code)
    known = {**{name: frame.f_globals.get(name) for name in names}, **frame.f_locals}
    walk = _Walk()
    for name, value in known.items():
        if isinstance(value, torch.nn.Module):
            name = paths.get(id(value), name)
        elif isinstance(value, types.ModuleType):
            value = dict(vars(value)) if any(each is tensor for each in vars(value).values()) else None
        for found, inner in walk.value(name, value, _NEAR):
            if inner is tensor:
                return found
            if isinstance(inner, torch.nn.Module):
                for path, own in [*inner.named_parameters(prefix=found), *inner.named_buffers(prefix=found)]:
                    if own is tensor:
                        return path
    return None
