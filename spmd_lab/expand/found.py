"""Several steps at once, as `Expansion` finds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spmd_lab.expand.values import Step

__all__ = ["Steps"]


class Steps(list["Step"]):
    """A list of steps that prints one line each, and unfolds in a notebook."""

    def __repr__(self) -> str:
        from spmd_lab.records import text

        return text(self)

    def _repr_html_(self) -> str:
        from spmd_lab.records import html

        return html(self)
