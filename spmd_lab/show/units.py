"""Numbers as people read them. Units are binary: 1 KB is 1,024 bytes."""

from __future__ import annotations

__all__ = ["bytes_text", "count_text", "counted", "share_text"]


def bytes_text(count: int) -> str:
    """A number of bytes, with at most one decimal; 1 KB is 1,024 bytes.

    Examples
    --------
    >>> [bytes_text(count) for count in (0, 1000, 524288, 1572864, 3 * 2**30)]
    ['0 B', '1000 B', '512 KB', '1.5 MB', '3 GB']
    """
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if round(size, 1) < 1024:
            return f"{round(size, 1):g} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


def count_text(count: int) -> str:
    """A count with separated thousands.

    Examples
    --------
    >>> count_text(1417)
    '1,417'
    """
    return f"{count:,}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """A count and its noun.

    Examples
    --------
    >>> counted(1, "step"), counted(2, "step"), counted(0, "entry", "entries")
    ('1 step', '2 steps', '0 entries')
    """
    return f"{count_text(count)} {noun if count == 1 else plural or noun + 's'}"


def share_text(share: float) -> str:
    """A share of a whole in percent.

    Examples
    --------
    >>> share_text(0.875), share_text(0.001), share_text(0.0)
    ('88 %', '< 1 %', '0 %')
    """
    return "< 1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"
