"""What values that print themselves have in common."""

from __future__ import annotations

__all__ = ["Shown"]


class Shown:
    """A value that says what it is in text, and unfolds in a notebook; both are made of the same record."""

    __slots__ = ()

    def __repr__(self) -> str:
        from spmd_lab.records import text

        return text(self)

    def _repr_html_(self) -> str:
        from spmd_lab.records import html

        return html(self)
