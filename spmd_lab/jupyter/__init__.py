"""What lives in a notebook: the only home of IPython."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spmd_lab.jupyter.completion import completions
from spmd_lab.jupyter.magic import SpmdMagics

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["SpmdMagics", "load_ipython_extension"]


def load_ipython_extension(ipython: InteractiveShell) -> None:
    """Make the magics known to a shell; ``%load_ext spmd_lab`` calls this."""
    ipython.register_magics(SpmdMagics)
    parser: Any = SpmdMagics.spmd_expand

    def complete(shell: InteractiveShell, event: Any) -> list[str]:
        return completions(event.line, event.symbol, shell.user_ns, parser.parser)

    for name in ("%spmd_expand", "%%spmd_expand"):
        ipython.set_hook("complete_command", complete, str_key=name)  # type: ignore[no-untyped-call]
