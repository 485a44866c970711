"""spmd_lab: see, prove and run the program that each device of a mesh will execute.

``import spmd_lab`` is light: a public name is loaded when it is first used, and torch's distributed tensors with it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from spmd_lab.errors import SpmdLabError
from spmd_lab.mesh import Mesh
from spmd_lab.torch_internals.whole_imports import whole_imports

if TYPE_CHECKING:
    from spmd_lab.expand import Collective, Expansion, Step, colwise, expand, fsdp, rowwise
    from spmd_lab.layout import Layout
    from spmd_lab.rebuild import Program, rebuild
    from spmd_lab.run import distribute
    from spmd_lab.run.ranks import Ranks
    from spmd_lab.saving import SavedProgram, load
    from spmd_lab.spmd_expand import spmd_expand
    from spmd_lab.teach import RegisteredRule, register_rule
    from spmd_lab.trace import Source, TracedGraph, trace

__all__ = [
    "Collective",
    "Expansion",
    "Layout",
    "Mesh",
    "Program",
    "Ranks",
    "RegisteredRule",
    "SavedProgram",
    "Source",
    "SpmdLabError",
    "Step",
    "TracedGraph",
    "colwise",
    "distribute",
    "expand",
    "fsdp",
    "load",
    "rebuild",
    "register_rule",
    "rowwise",
    "spmd_expand",
    "trace",
]

_HOMES = {
    "Collective": "spmd_lab.expand",
    "Expansion": "spmd_lab.expand",
    "Layout": "spmd_lab.layout",
    "Program": "spmd_lab.rebuild",
    "Ranks": "spmd_lab.run.ranks",
    "RegisteredRule": "spmd_lab.teach",
    "SavedProgram": "spmd_lab.saving",
    "Source": "spmd_lab.trace",
    "Step": "spmd_lab.expand",
    "TracedGraph": "spmd_lab.trace",
    "colwise": "spmd_lab.expand",
    "distribute": "spmd_lab.run.distribute",
    "expand": "spmd_lab.expand",
    "fsdp": "spmd_lab.expand",
    "load": "spmd_lab.saving",
    "rebuild": "spmd_lab.rebuild",
    "register_rule": "spmd_lab.teach",
    "rowwise": "spmd_lab.expand",
    "spmd_expand": "spmd_lab.spmd_expand",
    "trace": "spmd_lab.trace",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with whole_imports():
        value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """The package: ``spmd_lab.trace`` is the verb, whatever was imported from the folder of that name before."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, (self.__name__,)  # functions that travel to other processes name the package


sys.modules[__name__].__class__ = _Package


def load_ipython_extension(ipython: Any) -> None:
    """Make the magics known to a notebook; ``%load_ext spmd_lab`` calls this."""
    from spmd_lab.jupyter import load_ipython_extension as load

    load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Forget them; ``%unload_ext spmd_lab`` calls this."""
    from spmd_lab.jupyter import unload_ipython_extension as unload

    unload(ipython)
