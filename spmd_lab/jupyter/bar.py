"""The bar of long work in a notebook."""

# IPython has no types for what is used here.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import Any

from IPython import get_ipython
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.display import display
from tqdm.notebook import tqdm

__all__ = ["notebook_bar"]


class _Bar(tqdm):  # type: ignore[misc]
    """A bar that leaves nothing: on the page, in the notebook when it is saved, or running."""

    monitor_interval = 0

    def __init__(self, what: str, total: int | None, done: int) -> None:
        super().__init__(desc=what, total=total, initial=done, leave=False, unit="", miniters=1, display=False)
        self._shown: Any = display(self.container, display_id=True)
        self.displayed = True

    def close(self) -> None:
        self.total = None  # a bar that has not come to its end would stay, in red
        super().close()
        self._shown.update({"text/plain": ""}, raw=True)


def notebook_bar(what: str, total: int | None, done: int) -> _Bar | None:
    """A bar, if the cell is run by somebody who could answer: neither by a program nor into a variable."""
    shell: Any = get_ipython()
    kernel = getattr(shell, "kernel", None)
    if kernel is None or isinstance(shell.display_pub, CapturingDisplayPublisher):
        return None
    asked = kernel.get_parent("shell").get("content", {})
    return _Bar(what, total, done) if asked.get("allow_stdin") else None
