"""What can stand next on the line of a magic: its flags, axes of the mesh, names of parameters and variables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from torch import nn

from spmd_lab.errors import SpmdLabError
from spmd_lab.mesh import Mesh

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Mapping

__all__ = ["completions"]


def completions(line: str, symbol: str, names: Mapping[str, Any], parser: ArgumentParser) -> list[str]:
    """What the word at the end of a line can become.

    Parameters
    ----------
    line : str
        The line up to the cursor.
    symbol : str
        The word that is being typed, as the shell cuts it.
    names : mapping
        The variables of the notebook.
    parser : ArgumentParser
        Knows the flags.
    """
    typed = re.split(r"\s", line)[-1]
    if typed.startswith("-"):
        flags = [flag for action in parser._actions for flag in action.option_strings]  # noqa: SLF001
        return sorted(flag for flag in flags if flag.startswith(typed))
    option = (re.findall(r"(?:^|\s)(--?\w+)(?:\s+|=)(?:\"[^\"]*|'[^']*|\S*)$", line) or [""])[-1]
    return sorted(name for name in _candidates(option, line, names, parser) if name.startswith(symbol))


def _candidates(option: str, line: str, names: Mapping[str, Any], parser: ArgumentParser) -> list[str]:
    choices = {flag: action.choices for action in parser._actions for flag in action.option_strings}  # noqa: SLF001
    if choices.get(option):
        return [str(choice) for choice in choices[option] or ()]
    axes = _axes(line, names)
    if option == "--mesh":
        return [name for name, value in names.items() if isinstance(value, Mesh)]
    if option == "--batch":
        return axes
    if option in ("--params", "--inputs"):
        after_slash = re.search(r"/\w*$", line) is not None
        return axes if after_slash else _tensors(line, names) if option == "--params" else []
    if option == "--loss":
        return [name for name, value in names.items() if callable(value) and not name.startswith("_")]
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
    called = [names.get(name) for name in re.findall(r"(\w+)\(", line)]
    modules = [each for each in called if isinstance(each, nn.Module)]
    modules = modules or [each for each in names.values() if isinstance(each, nn.Module)]
    return sorted({name for module in modules for name, _ in (*module.named_parameters(), *module.named_buffers())})
