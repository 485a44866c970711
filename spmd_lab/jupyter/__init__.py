"""What lives in a notebook: the only home of IPython."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher

from spmd_lab.jupyter.completion import completions, line_of_magic
from spmd_lab.jupyter.magic import SpmdMagics

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["SpmdMagics", "load_ipython_extension", "unload_ipython_extension"]

_MATCHER = "spmd_lab.jupyter"


def load_ipython_extension(ipython: InteractiveShell) -> None:
    """Make the magics known to a shell; ``%load_ext spmd_lab`` calls this."""
    ipython.register_magics(SpmdMagics)
    magic: Any = SpmdMagics.spmd_expand

    @context_matcher(identifier=_MATCHER)  # type: ignore[untyped-decorator]
    def complete(context: CompletionContext) -> SimpleMatcherResult:
        line = line_of_magic(context.text_until_cursor)
        word, found = ("", []) if line is None else completions(line, ipython.user_ns, magic.parser)
        completing = [SimpleCompletion(each) for each in found]
        return {"completions": completing, "matched_fragment": word, "suppress": bool(completing)}

    ipython.Completer.custom_matchers.append(complete)


def unload_ipython_extension(ipython: InteractiveShell) -> None:
    """Forget the magics; ``%unload_ext spmd_lab`` calls this."""
    for kind in ("line", "cell"):
        ipython.magics_manager.magics[kind].pop("spmd_expand", None)
    matchers = ipython.Completer.custom_matchers
    matchers[:] = [each for each in matchers if getattr(each, "matcher_identifier", None) != _MATCHER]
