"""Placements by name: patterns over dotted names, and what each of them says of a tensor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from torch.distributed.tensor import Replicate, Shard

from spmd_lab.errors import LayoutError, PatternError, expect, nearest
from spmd_lab.expand.styles import AtRest, Style
from spmd_lab.layout import Layout, replicated

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.mesh import Mesh
    from spmd_lab.trace.values import TracedGraph, TracedInput

__all__ = ["match_parameters", "place"]


def place(spec: object, shape: Sequence[int], dtype: torch.dtype, mesh: Mesh, argument: str) -> Layout:
    """The layout that a user's placements stand for: text, a list with one placement per axis, or a layout.

    Raises
    ------
    LayoutError, NotationError
        If they do not fit the tensor or the mesh.
    PatternError
        If they are of no known form.
    """
    try:
        if isinstance(spec, Layout):
            return _as_stated(spec, shape, dtype, mesh)
        if isinstance(spec, str):
            return Layout.parse(spec, mesh, shape, dtype)
        if isinstance(spec, (list, tuple)):
            return Layout(shape, dtype, mesh, spec)
    except LayoutError as error:
        tensor = str(replicated(shape, dtype, mesh))
        raise type(error)(error.what, argument=argument, layouts={"tensor": tensor}, hint=error.hint) from None
    raise PatternError(
        f"{spec!r} is no placement", argument=argument, hint='text as "o/tp i", or a list as [Shard(0), Replicate()]'
    )


def _as_stated(spec: Layout, shape: Sequence[int], dtype: torch.dtype, mesh: Mesh) -> Layout:
    """A layout for this very tensor on this very mesh, whatever its device."""
    if (spec.mesh.axes, spec.mesh.shape) != (mesh.axes, mesh.shape):
        raise LayoutError(
            f"the layout is for {spec.mesh!r}, not for {mesh!r}", hint="write it as text, or on this mesh"
        )
    if spec.global_shape != tuple(shape):
        raise LayoutError(
            f"the layout is for a tensor of shape {list(spec.global_shape)}, not {list(shape)}",
            hint="text with names for dims fits any size",
        )
    return Layout(shape, dtype, mesh, spec.placements)


def match_parameters(
    traced: TracedGraph,
    mesh: Mesh,
    rules: Mapping[str, object],
    what: Literal["params", "stored"] = "params",
    used: Mapping[str, Layout] | None = None,
) -> dict[str, Layout]:
    """The layout of every parameter and buffer that a pattern matches; the first match wins.

    Parameters
    ----------
    traced, mesh
        The program, and where it shall run.
    rules : mapping of str to placements
        By pattern.
    what : str
        The argument that they come from.
    used : mapping of str to Layout, optional
        By name, the layouts in use, where ``rules`` say how parameters rest.

    Raises
    ------
    PatternError
        If a pattern matches nothing, if earlier ones leave it nothing, or if two names of one tensor disagree.
    """
    expect(rules, Mapping, what, f'a mapping of names to placements: {what}={{"...": "o/tp i"}}')
    owned = [found for found in traced.inputs if found.role in ("parameter", "buffer")]
    layouts: dict[str, Layout] = {}
    winners: dict[str, str] = {}
    agreeing: set[str] = set()
    for pattern, spec in rules.items():
        expect(pattern, str, f"{what}={{{pattern!r}: ...}}", "a pattern over the names of parameters, as text")
        argument = f"{what}={{{pattern!r}: {spec!r}}}"
        _refuse_unknown_axes(spec, mesh, argument)
        matched = [found for found in owned if _matching_names(pattern, spec, found)]
        if not matched:
            raise _nothing_matched(pattern, spec, owned, argument)
        for found in matched:
            name = _matching_names(pattern, spec, found)[0]
            if found.name not in layouts:
                layouts[found.name], winners[found.name] = _layout(found, spec, mesh, name, argument, used), pattern
            elif _different_names(winners[found.name], pattern, rules, found):
                agreeing.add(pattern)
                layout = _layout(found, spec, mesh, name, argument, used)
                if layout == layouts[found.name]:
                    continue
                raise PatternError(
                    f"{' and '.join(map(repr, found.names))} are one tensor, but two patterns place it differently",
                    argument=argument,
                    layouts={winners[found.name]: layouts[found.name], pattern: layout},
                    hint="give both names the same placements, or name one of them",
                )
        if pattern not in winners.values() and pattern not in agreeing:
            earlier = sorted({winners[found.name] for found in matched})
            raise PatternError(
                f"{pattern!r} has no effect: {', '.join(map(repr, earlier))} matches the same names first",
                argument=argument,
                hint="put the more specific pattern first",
            )
    return layouts


def _matching_names(pattern: str, spec: object, found: TracedInput) -> list[str]:
    """The names of an input that a pattern matches; a style's pattern matches the layer around it."""
    if isinstance(spec, Style):
        layers = {
            name: name.rpartition(".")[0] for name in found.names if name.rpartition(".")[2] in ("weight", "bias")
        }
        return [name for name, layer in layers.items() if _matches(pattern, layer)]
    if isinstance(spec, AtRest) and found.role != "parameter":
        return []
    return [name for name in found.names if _matches(pattern, name)]


def _different_names(first: str, second: str, rules: Mapping[str, object], found: TracedInput) -> bool:
    """Whether two patterns reach a tied tensor by different names of it."""
    names = (_matching_names(pattern, rules[pattern], found) for pattern in (first, second))
    return not set(next(names)) & set(next(names))


def _nothing_matched(pattern: str, spec: object, owned: list[TracedInput], argument: str) -> PatternError:
    names = [name for found in owned for name in found.names]
    if isinstance(spec, Style):
        names = [name.rpartition(".")[0] for name in names if "." in name]
    asked = pattern.replace("**.", "").replace("*.", "")
    close = [name for name in names if name.endswith(asked)] or names
    tails = sorted({".".join(name.split(".")[-asked.count(".") - 1 :]) for name in names})
    hint = nearest(asked, tails) if close is names else nearest(pattern, close)
    return PatternError(f"{pattern!r} matches no parameter and no buffer", argument=argument, hint=hint)


def _refuse_unknown_axes(spec: object, mesh: Mesh, argument: str) -> None:
    named = (spec.axis,) if isinstance(spec, Style) else spec.axes if isinstance(spec, AtRest) else ()
    for axis in named:
        if axis not in mesh.axes:
            raise PatternError(f"{mesh!r} has no axis {axis!r}", argument=argument, hint=nearest(axis, mesh.axes))


def _layout(
    found: TracedInput, spec: object, mesh: Mesh, name: str, argument: str, used: Mapping[str, Layout] | None
) -> Layout:
    if spec is None and used is not None:
        return used[found.name]
    if isinstance(spec, AtRest):
        if used is None:
            raise PatternError("fsdp says how parameters rest", argument=argument, hint=f"stored={spec!r}")
        return spec.layout(used[found.name])
    if not isinstance(spec, Style):
        return place(spec, found.global_shape, found.dtype, mesh, argument)
    placements: list[Placement] = [Replicate()] * mesh.ndim
    dim = _divided_dim(spec, name.rpartition(".")[2], found)
    if dim is not None:
        placements[mesh.axis_index(spec.axis)] = Shard(dim)
    return Layout(found.global_shape, found.dtype, mesh, placements)


def _divided_dim(style: Style, leaf: str, found: TracedInput) -> int | None:
    """The dim of a weight or bias that a style divides; ``[in, out]`` for layers that keep their matrix that way."""
    outwards = style.kind == "colwise"
    if leaf == "bias" or len(found.global_shape) < 2:
        return 0 if outwards else None
    in_first = found.owner in ("Conv1D", "Embedding")
    return int(outwards) if in_first else int(not outwards)


def _matches(pattern: str, name: str) -> bool:
    """Whether the whole name matches: ``*`` is one component, ``**`` any number of them, none included."""
    return _regex(pattern).match(name + "." if name else "") is not None


@lru_cache(maxsize=1024)
def _regex(pattern: str) -> re.Pattern[str]:
    """A pattern over a name to which a dot is appended, so that every component ends in one."""
    parts = []
    for component in pattern.split("."):
        if component == "**":
            parts.append(r"(?:[^.]+\.)*")
        else:
            parts.append(re.escape(component).replace(r"\*", r"[^.]*") + r"\.")
    return re.compile("".join(parts) + r"\Z")
