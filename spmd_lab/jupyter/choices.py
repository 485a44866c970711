"""What there is to choose in an expansion: a layout for each input, and for parameters that are alike."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from spmd_lab.notation import dtype_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spmd_lab.expand.expansion import Expansion
    from spmd_lab.layout import Layout

__all__ = ["Group", "groups_of"]

_MANY = 30
"""With more combinations of axes than so many, only one axis is offered at a time."""


@dataclass(frozen=True)
class Group:
    """Tensors that are laid out alike, and have one choice together.

    Parameters
    ----------
    label : str
        What to call them: their name, a pattern, or ``blocks.{0,1}.up.weight``.
    keys : tuple of str
        What stands for them in ``params`` or ``inputs``: the pattern, or their names.
    is_input : bool
        Whether it is an input, and not parameters or buffers.
    layout : Layout
        How they lie.
    """

    label: str
    keys: tuple[str, ...]
    is_input: bool
    layout: Layout

    @property
    def options(self) -> tuple[str, ...]:
        """Whole, divided over one axis or several, and as it is."""
        dims = [None, *(dim for dim, size in enumerate(self.layout.global_shape) if size > 1)]
        axes = self.layout.mesh.axes
        ways = list(product(dims, repeat=len(axes)))
        if len(ways) > _MANY:
            ways = [way for way in ways if sum(dim is not None for dim in way) <= 1]
        ways.sort(key=lambda way: (sum(dim is not None for dim in way), [dim is None for dim in way]))
        return tuple(dict.fromkeys([*(_notation(self.layout, way) for way in ways), str(self.layout)]))


def groups_of(expansion: Expansion) -> list[Group]:
    """The groups of an expansion: inputs one by one, parameters by what their names have in common.

    Examples
    --------
    >>> import torch, spmd_lab as sl
    >>> layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
    >>> expansion = sl.spmd_expand(layers, torch.ones(4, 4), mesh=sl.Mesh(tp=2), params={"1.weight": "o/tp i"})
    >>> [each.label for each in groups_of(expansion)]
    ['{0,2}.weight', '*.bias', '1.weight', 'input']
    """
    entries = zip(expansion.traced.inputs, expansion.input_layouts, strict=True)
    shown = [
        (each, expansion.in_use.get(each.name, layout))
        for each, layout in entries
        if each.role != "tangent" and layout.global_shape
    ]
    state = [each.name for each, _ in shown if each.role != "input"]
    alike: dict[tuple[str, Layout], list[str]] = {}
    for each, layout in shown:
        if each.role != "input":
            alike.setdefault((re.sub(r"\d+", "#", each.name), layout), []).append(each.name)
    parameters = [_group(names, layout, state) for (_, layout), names in alike.items()]
    return parameters + [Group(each.name, (each.name,), True, layout) for each, layout in shown if each.role == "input"]


def _group(names: Sequence[str], layout: Layout, state: Sequence[str]) -> Group:
    """Names that have all but their numbers in common; a pattern stands for them, if it means them alone."""
    pattern = ".".join(_component(set(parts)) for parts in zip(*(name.split(".") for name in names), strict=True))
    meant = [name for name in state if re.fullmatch(pattern.replace(".", r"\.").replace("*", r"[^.]+"), name)]
    if meant == list(names):
        return Group(pattern, (pattern,), False, layout)
    return Group("".join(_joined(names)), tuple(names), False, layout)


def _component(parts: set[str]) -> str:
    return next(iter(parts)) if len(parts) == 1 else "*"


def _joined(names: Sequence[str]) -> Iterator[str]:
    """The names as one: numbers that differ are listed in braces."""
    for pieces in zip(*(re.split(r"(\d+)", name) for name in names), strict=True):
        different = list(dict.fromkeys(pieces))
        yield different[0] if len(different) == 1 else f"{{{','.join(different)}}}"


def _notation(layout: Layout, way: Sequence[int | None]) -> str:
    """The layout that divides a dim, or none, over each axis."""
    sizes = [
        "/".join([str(size), *(axis for axis, dim in zip(layout.mesh.axes, way, strict=True) if dim == place)])
        for place, size in enumerate(layout.global_shape)
    ]
    return f"{dtype_name(layout.dtype)}[{', '.join(sizes)}]"
