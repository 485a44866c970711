"""All models by name."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from tests.models import attention, library, mixtures, objectives, recurrent, structures, vision

if TYPE_CHECKING:
    from collections.abc import Callable

    import spmd_lab as sl
    from tests.models.specimen import Specimen

__all__ = ["ZOO", "traced"]

ZOO: dict[str, Callable[[], Specimen]] = {
    make.__name__: make
    for family in (library, attention, mixtures, vision, recurrent, objectives, structures)
    for make in family.MODELS
}


@cache
def traced(name: str) -> tuple[Specimen, sl.TracedGraph]:
    """A model, and its traced training step."""
    torch.manual_seed(0)
    specimen = ZOO[name]()
    return specimen, specimen.trace()
