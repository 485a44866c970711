"""Writes a file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from spmd_lab.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["check_place", "write_file", "write_text"]


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write text, as `write_file` writes; what no encoding has becomes an escape.

    Raises
    ------
    ArgumentError
        If its folder does not exist, or the path is a folder.
    """
    return write_file(path, lambda file: file.write(text.encode("utf-8", "backslashreplace")))


def write_file(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> Path:
    """Write a file by way of a neighbour that then takes its name.

    Parameters
    ----------
    path : path
        Where it is to be.
    write : callable
        Writes the contents into a file that is open; if it raises, everything is as it was.

    Raises
    ------
    ArgumentError
        If its folder does not exist, or the path is a folder.
    """
    target = check_place(path)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
    return target


def check_place(path: str | os.PathLike[str], argument: str = "") -> Path:
    """Refuse a path at which no file can be, before there is anything to write.

    Raises
    ------
    ArgumentError
        If its folder does not exist, or the path is a folder.
    """
    target, argument = Path(path), argument or f"path={str(path)!r}"
    if not target.parent.is_dir():
        hint = "make it first, or give another path"
        raise ArgumentError(f"there is no folder {target.parent}", argument=argument, hint=hint)
    if target.is_dir():
        raise ArgumentError(f"{target} is a folder", argument=argument, hint="add the name of a file")
    return target


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
