"""Tables for pandas, where it is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spmd_lab.errors import SpmdLabError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["frame_of"]


def frame_of(rows: Iterable[object], columns: Sequence[str]) -> Any:
    """A ``pandas.DataFrame`` of rows.

    Raises
    ------
    SpmdLabError
        If pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise SpmdLabError("to_frame() needs pandas, which is not installed", hint="pip install pandas") from error
    return pandas.DataFrame(list(rows), columns=list(columns))
