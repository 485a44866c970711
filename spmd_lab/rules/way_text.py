"""Ways to run an operator over one mesh axis, written in the notation: ``"b/* d, d o -> b/* o"``.

Tensors are separated by commas, dims by spaces; ``*`` is the axis at hand. A name that stands twice is one size, so a
way says itself which calls it fits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.errors import NotationError
from spmd_lab.rules.strategies import Way

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.rules.plan import OpCall

__all__ = ["MisfitError", "WrittenWay", "read_way", "write_way"]

_EXAMPLE = 'as in "b/* d, d o -> b/* o", or "b d/*, d/* o -> b o{sum: *}"'
_TENSOR = re.compile(r"(?P<dims>[^{}]*)(?P<pending>\{\s*(?P<kind>\w+)\s*:\s*\*\s*\})?\s*\Z")
_TERM = re.compile(r"(?P<name>\w+|\.\.\.)(?P<divided>/\*)?\Z")
_REDUCTIONS = ("sum", "avg", "max", "min", "product")
_SEPARATOR = re.compile(r",(?![^{]*\})")
_ANYTHING = "_"


class MisfitError(Exception):
    """A way that a call has no use for; the text says why."""


class _Dim(NamedTuple):
    """A name, a size, ``...`` or ``_``; and whether the axis divides it."""

    name: str
    divided: bool


class _Tensor(NamedTuple):
    """The dims of a tensor, and the reduction that is pending on the axis, if any."""

    dims: tuple[_Dim, ...]
    pending: str | None


@dataclass(frozen=True)
class WrittenWay:
    """A way that was read from text.

    Parameters
    ----------
    text : str
        As it was written.
    needs, outputs : tuple
        Its tensors.
    """

    text: str
    needs: tuple[_Tensor, ...]
    outputs: tuple[_Tensor, ...]

    def fitted(self, call: OpCall) -> Way:
        """The placements that it says for a call; outputs that are no tensors are passed over.

        Raises
        ------
        MisfitError
            If the call has other tensors, dims or sizes than are written.
        """
        results = [None if result is None else tuple(result.shape) for result in call.results]
        shapes = [tensor.layout.global_shape for tensor in call.tensors]
        returned = [shape for shape in results if shape is not None]
        for kind, written, found in (("reads", self.needs, shapes), ("returns", self.outputs, returned)):
            if len(written) != len(found):
                raise MisfitError(f"it has {_tensors(len(written))} where the call {kind} {_tensors(len(found))}")
        sizes: dict[str, object] = {}
        placed = [
            _place(tensor, shape, sizes, f"tensor {index}")
            for index, (tensor, shape) in enumerate(zip(self.needs, shapes, strict=True))
        ]
        made = iter(
            [
                _place(tensor, shape, sizes, f"output {index}")
                for index, (tensor, shape) in enumerate(zip(self.outputs, returned, strict=True))
            ]
        )
        return Way(tuple(placed), tuple(Replicate() if shape is None else next(made) for shape in results))


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count} tensors"


def read_way(text: str) -> WrittenWay:
    """Read a way.

    Parameters
    ----------
    text : str
        What the operator reads, ``->``, and what it returns. The axis may divide a dim (``b/*``) or be pending
        (``{sum: *}``) in each tensor; ``...`` stands for any dims, ``_`` for one of any size.

    Raises
    ------
    NotationError
        If the text does not read so.

    Examples
    --------
    >>> read_way("b d/*, d/* o -> b o{sum: *}").outputs[0].pending
    'sum'
    >>> read_way("b/tp d -> b/tp d")
    Traceback (most recent call last):
    spmd_lab.errors.NotationError: cannot read 'b/tp'
      argument: 'b/tp d -> b/tp d'
      try: a way is over one axis, whichever it is: b/*
    """
    sides = text.split("->")
    if len(sides) != 2:
        raise NotationError("a way has one arrow", argument=repr(text), hint=_EXAMPLE)
    needs, outputs = (tuple(_read_tensor(part, text) for part in _SEPARATOR.split(side)) for side in sides)
    if not any(tensor.pending or any(dim.divided for dim in tensor.dims) for tensor in (*needs, *outputs)):
        raise NotationError(
            "this way divides nothing",
            argument=repr(text),
            hint="leave it out: to run an operator whole on every rank is always possible",
        )
    return WrittenWay(text.strip(), needs, outputs)


def _read_tensor(part: str, text: str) -> _Tensor:
    match = _TENSOR.match(part)
    if match is None or (match["kind"] or "sum") not in _REDUCTIONS:
        pending = part[part.find("{") :].strip() if "{" in part else part.strip()
        hint = f"a reduction pending on the axis: {{sum: *}}, with one of {', '.join(_REDUCTIONS)}"
        raise NotationError(f"cannot read {pending!r}", argument=repr(text), hint=hint)
    dims = tuple(_read_dim(term, text) for term in match["dims"].split())
    if [dim.name for dim in dims].count("...") > 1:
        raise NotationError("'...' stands twice", argument=repr(text), hint="use it once in a tensor")
    if sum(dim.divided for dim in dims) + (match["kind"] is not None) > 1:
        raise NotationError(
            f"{part.strip()!r} uses the axis twice",
            argument=repr(text),
            hint="an axis divides one dim of a tensor, or is pending",
        )
    return _Tensor(dims, match["kind"])


def _read_dim(term: str, text: str) -> _Dim:
    match = _TERM.match(term)
    if match is None:
        hint = "a way is over one axis, whichever it is: " + term.partition("/")[0] + "/*" if "/" in term else _EXAMPLE
        raise NotationError(f"cannot read {term!r}", argument=repr(text), hint=hint)
    if match["name"] == "..." and match["divided"]:
        raise NotationError(
            "'...' cannot be divided", argument=repr(text), hint="name the dim that is: a/* ..., or ... a/*"
        )
    return _Dim(match["name"], match["divided"] is not None)


def _place(tensor: _Tensor, shape: tuple[int, ...], sizes: dict[str, object], where: str) -> Placement:
    """The placement of one tensor; notes the sizes of its names, which must be those that they had before."""
    names = [dim.name for dim in tensor.dims]
    spare = len(shape) - (len(names) - names.count("..."))
    if spare < 0 or (spare and "..." not in names):
        raise MisfitError(f"it has {len(names)} dims where {where} has shape {list(shape)}")
    position = 0
    placement: Placement = Partial(tensor.pending) if tensor.pending else Replicate()
    for name, divided in tensor.dims:
        length: object
        if name == "...":
            length = shape[position : position + spare]
            position += spare
        else:
            length = shape[position]
            placement = Shard(position) if divided else placement
            position += 1
        known = int(name) if name.isdecimal() else sizes.setdefault(name, length) if name != _ANYTHING else length
        if known != length:
            raise MisfitError(f"{name!r} is {_shown(known)}, and {_shown(length)} in {where} of shape {list(shape)}")
    return placement


def _shown(length: object) -> str:
    return str(list(length)) if isinstance(length, tuple) else str(length)


def write_way(way: Way, call: OpCall) -> str:
    """A way in the notation, with the sizes of a call for its dims.

    Examples
    --------
    Here for an operator that reads ``f32[5, 4]`` and returns its like: ``"5/* 4 -> 5/* 4"``.
    """
    read = [tensor.layout.global_shape for tensor in call.tensors]
    made = [
        (tuple(result.shape), each)
        for result, each in zip(call.results, way.outputs, strict=True)
        if result is not None
    ]
    return " -> ".join(
        ", ".join(_write_tensor(shape, placement) for shape, placement in side)
        for side in (list(zip(read, way.needs, strict=True)), made)
    )


def _write_tensor(shape: Sequence[int], placement: Placement) -> str:
    divided = placement.dim if isinstance(placement, Shard) else None
    dims = " ".join(f"{size}/*" if dim == divided else str(size) for dim, size in enumerate(shape))
    return dims + (f"{{{placement.reduce_op}: *}}" if isinstance(placement, Partial) else "")
