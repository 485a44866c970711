"""The flag by which models learn that they are being captured."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["announced_capture"]


@contextmanager
def announced_capture() -> Iterator[None]:
    """Let ``torch.compiler.is_compiling()`` say True, so that models leave out checks that need the values of tensors."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before
