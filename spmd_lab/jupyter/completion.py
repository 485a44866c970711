"""What can stand next on the line of a magic: its flags, axes of the mesh, names of parameters and variables."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from spmd_lab.errors import SpmdLabError
from spmd_lab.mesh import Mesh

if TYPE_CHECKING:
    from argparse import Action, ArgumentParser
    from collections.abc import Callable, Mapping

__all__ = ["completions", "line_of_magic"]

_LINE = re.compile(r"\s*(?:[\w\s,.\[\]]+=\s*)?%%?spmd_expand\s(?P<line>.*)\Z")
_OPTION = re.compile(r"(?:^|\s)(--?\w+)(?:\s+|=)(?:\"[^\"]*|'[^']*|\S*)\Z")
_AXIS = re.compile(r"/\w*\Z|\{\w+:[\w, ]*\Z")


def line_of_magic(text: str) -> str | None:
    """What follows the name of the magic on a line of code; None where there is none.

    Examples
    --------
    >>> line_of_magic("kept = %spmd_expand model(x) --me"), line_of_magic("model(x)")
    ('model(x) --me', None)
    """
    found = _LINE.match(text)
    return found["line"] if found else None


def completions(line: str, names: Mapping[str, Any], parser: ArgumentParser) -> tuple[str, list[str]]:
    """The word at the end of a line, and what it can become.

    Parameters
    ----------
    line : str
        What stands before the cursor, without the name of the magic.
    names : mapping
        The variables of the notebook.
    parser : ArgumentParser
        Knows the flags.
    """
    typed = re.split(r"\s", line)[-1]
    actions = {flag: action for action in parser._actions for flag in action.option_strings}  # noqa: SLF001
    word = typed if typed.startswith("-") else re.split(r"[^\w.]", typed)[-1]
    candidates = list(actions) if typed.startswith("-") else _candidates(line, names, actions)
    return word, sorted({name for name in candidates if name.startswith(word)})


def _candidates(line: str, names: Mapping[str, Any], actions: Mapping[str, Action]) -> list[str]:
    """What can stand where no flag stands."""
    found = _OPTION.search(line)
    option = actions.get(found[1]) if found else None
    if option is None or option.nargs == 0:
        return _in_call(line, names)
    if option.choices:
        return [str(choice) for choice in option.choices]
    if option.dest == "batch" or (option.dest in ("params", "stored", "inputs") and _AXIS.search(line)):
        return _axes(line, names)
    of: dict[str, Callable[[], list[str]]] = {
        "mesh": lambda: _variables(names, Mesh),
        "params": lambda: _tensors(line, names),
        "stored": lambda: _tensors(line, names),
        "inputs": lambda: _keywords(line, names) or _variables(names, torch.Tensor),
        "loss": lambda: [name for name in _variables(names, object) if callable(names[name])],
    }
    return of.get(option.dest, list)()


def _in_call(line: str, names: Mapping[str, Any]) -> list[str]:
    """Variables; and, where a call is open, the names of its arguments."""
    inside = line.count("(") > line.count(")")
    return _variables(names, object) + ([f"{name}=" for name in _keywords(line, names)] if inside else [])


def _variables(names: Mapping[str, Any], kind: type) -> list[str]:
    return [name for name, value in names.items() if isinstance(value, kind) and not name.startswith("_")]


def _called(line: str, names: Mapping[str, Any]) -> list[Any]:
    """What the line calls, as far as variables tell."""
    return [names[name] for name in re.findall(r"(?<![\w.])(\w+)\(", line) if name in names]


def _keywords(line: str, names: Mapping[str, Any]) -> list[str]:
    """The names of the arguments of what the line calls first."""
    for called in _called(line, names)[:1]:
        try:
            return list(inspect.signature(called.forward if isinstance(called, nn.Module) else called).parameters)
        except (TypeError, ValueError):  # what is written in C has none
            return []
    return []


def _axes(line: str, names: Mapping[str, Any]) -> list[str]:
    """The axes of the mesh that the line names."""
    found = re.search(r"--mesh[\s=]+(\S+)", line)
    if found is None:
        return []
    known = names.get(found[1])
    if isinstance(known, Mesh):
        return list(known.axes)
    try:
        return list(Mesh.parse(found[1]).axes)
    except SpmdLabError:
        return []


def _tensors(line: str, names: Mapping[str, Any]) -> list[str]:
    """The parameters and buffers of the module that the line calls; of every module in the notebook before that."""
    modules = [each for each in _called(line, names) if isinstance(each, nn.Module)]
    modules = modules or [each for each in names.values() if isinstance(each, nn.Module)]
    return [name for module in modules for name, _ in (*module.named_parameters(), *module.named_buffers())]
