"""How a file is called when a line of it is shown; the cells of a notebook are files too, of unreadable names."""

from __future__ import annotations

import re

__all__ = ["shown_file"]

_CELL = re.compile(r"ipykernel_\d+[/\\](?P<notebook>\w+)\.py\Z|<ipython-input-\d+-(?P<shell>\w+)>\Z")


def shown_file(file: str) -> str:
    """The file's own name; for a cell, a short name that follows from its text, not from when it ran.

    Examples
    --------
    >>> shown_file("models/gpt.py"), shown_file("/tmp/ipykernel_815/2320005705.py")
    ('gpt.py', 'cell2320')
    """
    cell = _CELL.search(file)
    if cell is not None:
        return f"cell{(cell['notebook'] or cell['shell'])[:4]}"
    return file.replace("\\", "/").rsplit("/", 1)[-1]
