"""A file is written whole or not at all."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, BinaryIO

import pytest
import torch

import spmd_lab as sl
from spmd_lab.errors import ArgumentError
from spmd_lab.files import write_file, write_text

if TYPE_CHECKING:
    from pathlib import Path


def test_a_writer_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "kept.txt"
    write_text(target, "before")

    def half(file: BinaryIO) -> None:
        file.write(b"half of it")
        raise OSError("no space is left")

    with pytest.raises(OSError, match="no space"):
        write_file(target, half)
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_a_program_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = sl.spmd_expand(torch.nn.Linear(4, 2), torch.ones(8, 4), mesh=sl.Mesh(dp=2), batch="dp").program

    def fails(data: object, file: BinaryIO) -> None:
        file.write(b"half of it")
        raise RuntimeError("no space is left")

    monkeypatch.setattr(torch, "save", fails)
    with pytest.raises(RuntimeError, match="no space"):
        program.save(tmp_path / "linear.spmd")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ArgumentError, match="is a folder"):
        program.save(tmp_path)


def test_two_writers_share_no_file(tmp_path: Path) -> None:
    """Each waits, halfway, for the other to be halfway too."""
    target, halfway = tmp_path / "either.txt", threading.Barrier(2, timeout=20)

    def write(letter: bytes) -> None:
        def slowly(file: BinaryIO) -> None:
            file.write(letter * 10)
            halfway.wait()
            file.write(letter * 10)

        write_file(target, slowly)

    writers = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert target.read_text() in ("a" * 20, "b" * 20)
    assert list(tmp_path.iterdir()) == [target]
