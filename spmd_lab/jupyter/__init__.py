"""What lives in a notebook: the only home of IPython."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.jupyter.magic import SpmdMagics

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["SpmdMagics", "load_ipython_extension"]


def load_ipython_extension(ipython: InteractiveShell) -> None:
    """Make the magics known to a shell; ``%load_ext spmd_lab`` calls this."""
    ipython.register_magics(SpmdMagics)
