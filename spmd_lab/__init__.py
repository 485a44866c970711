"""spmd_lab: see, prove and run the program that each device of a mesh will execute."""

from __future__ import annotations

from typing import Any

from spmd_lab.errors import SpmdLabError
from spmd_lab.expand import Collective, Expansion, Step, colwise, expand, rowwise
from spmd_lab.layout import Layout
from spmd_lab.mesh import Mesh
from spmd_lab.rebuild import Program, rebuild
from spmd_lab.run import distribute
from spmd_lab.spmd_expand import spmd_expand
from spmd_lab.trace import Source, TracedGraph, trace

__all__ = [
    "Collective",
    "Expansion",
    "Layout",
    "Mesh",
    "Program",
    "Source",
    "SpmdLabError",
    "Step",
    "TracedGraph",
    "colwise",
    "distribute",
    "expand",
    "rebuild",
    "rowwise",
    "spmd_expand",
    "trace",
]


def load_ipython_extension(ipython: Any) -> None:
    """Make the magics known to a notebook; ``%load_ext spmd_lab`` calls this."""
    from spmd_lab.jupyter import load_ipython_extension as load

    load(ipython)
