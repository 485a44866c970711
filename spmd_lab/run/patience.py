"""How long ranks wait for one another."""

from __future__ import annotations

from spmd_lab.errors import ArgumentError

__all__ = ["PATIENCE_S", "check_patience"]

PATIENCE_S = {"processes": 60.0, "ipyparallel": 8.0}
"""By default, by what the ranks are; the engines of a cluster outlive a call only once its collectives give up."""

_MOST = 1e9
"""More than thirty years: the clocks of collectives end at some centuries."""


def check_patience(seconds: object, argument: str) -> float:
    """The seconds, if ranks can wait for that long.

    Raises
    ------
    ArgumentError
        If it is no number, is not longer than nothing, or has no end.

    Examples
    --------
    >>> check_patience(8, "patience_s=8")
    8.0
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < _MOST:
        hint = "a number of seconds, as 60"
        raise ArgumentError(f"ranks cannot wait for {seconds!r} seconds", argument=argument, hint=hint)
    return float(seconds)
