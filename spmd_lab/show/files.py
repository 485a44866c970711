"""Writes a file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from spmd_lab.errors import ArgumentError

__all__ = ["write_text"]


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a file by way of a neighbour that then takes its name.

    Raises
    ------
    ArgumentError
        If its folder does not exist, or the path is a folder.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise ArgumentError(
            f"there is no folder {target.parent}",
            argument=f"path={str(path)!r}",
            hint="make it first, or give another path",
        )
    if target.is_dir():
        raise ArgumentError(f"{target} is a folder", argument=f"path={str(path)!r}", hint="add the name of a file")
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", text=True)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
    return target


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
