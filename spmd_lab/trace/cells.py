"""How a file and its lines are shown; the cells of a notebook are files too, of unreadable names."""

from __future__ import annotations

import ast
import re

__all__ = ["as_typed", "shown_file"]

_CELL = re.compile(r"ipykernel_\d+[/\\](?P<notebook>\w+)\.py\Z|<ipython-input-\d+-(?P<shell>\w+)>\Z")
_MAGIC = re.compile(r"get_ipython\(\)\.run_line_magic\('(?P<name>\w+)', (?P<line>'.*')\)\Z")


def as_typed(code: str) -> str:
    """A line of code as it stands in the cell, where a shell has rewritten it.

    Examples
    --------
    >>> as_typed("y = get_ipython().run_line_magic('spmd_expand', 'model(x) --mesh dp=2')"), as_typed("y = f(x)")
    ('y = %spmd_expand model(x) --mesh dp=2', 'y = f(x)')
    """
    return _MAGIC.sub(lambda found: f"%{found['name']} {ast.literal_eval(found['line'])}", code)


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
