"""Several steps at once: all of an expansion, or those that are found in it.

They print one line for each step; of very many, those in the middle are counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex, overload

from spmd_lab.errors import expect
from spmd_lab.shown import Shown

if TYPE_CHECKING:
    from spmd_lab.expand.values import Step

__all__ = ["StepList", "Steps"]


_HINT = "a position or a slice; expansion[...] finds steps by name, module and line"


class Steps(Shown, tuple["Step", ...]):
    """The steps of an expansion, in order."""

    @overload
    def __getitem__(self, key: SupportsIndex) -> Step: ...
    @overload
    def __getitem__(self, key: slice) -> Steps: ...
    def __getitem__(self, key: SupportsIndex | slice) -> Step | Steps:
        expect(key, (SupportsIndex, slice), f"steps[{key!r}]", _HINT)
        return Steps(super().__getitem__(key)) if isinstance(key, slice) else super().__getitem__(key)


class StepList(Shown, list["Step"]):
    """The steps that `Expansion` finds for a key."""

    @overload
    def __getitem__(self, key: SupportsIndex) -> Step: ...
    @overload
    def __getitem__(self, key: slice) -> StepList: ...
    def __getitem__(self, key: SupportsIndex | slice) -> Step | StepList:
        expect(key, (SupportsIndex, slice), f"steps[{key!r}]", _HINT)
        return StepList(super().__getitem__(key)) if isinstance(key, slice) else super().__getitem__(key)
