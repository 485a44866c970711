"""Reads the notation of `spmd_lab.notation`, as printed or as a person types it."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.errors import MeshError, NotationError, expect
from spmd_lab.layout import Layout
from spmd_lab.mesh import Mesh
from spmd_lab.notation import DTYPES, Factor, dtype_name
from spmd_lab.torch_internals.placements import StridedShard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.tensor.placement_types import Placement

__all__ = ["parse_layout"]

_REDUCTIONS = ("sum", "avg", "max", "min", "product")
_WHOLE = re.compile(r"\s*(?P<dtype>\w+)\s*\[(?P<dims>[^\]]*)\]\s*(?P<pending>\{.*\})?\s*\Z", re.DOTALL)
_BARE = re.compile(r"(?P<dims>[^{}]*)(?P<pending>\{.*\})?\s*\Z", re.DOTALL)
_TERM = re.compile(r"\([^()]*\)[^\s,()]*|\.\.\.|[^\s,()]+")
_STRIDED_AXIS = re.compile(r"(?P<axis>\w+)~(?P<split_factor>[1-9]\d*)\Z")


def parse_layout(text: str, mesh: Mesh, shape: Sequence[int] | None = None, dtype: torch.dtype | None = None) -> Layout:
    """Read a layout; see `Layout.parse`."""
    expect(text, str, "text", 'as in "f32[16/dp, 64]{sum: tp}" or "b/dp ..."')
    expect(mesh, Mesh, "mesh", "sl.Mesh(dp=2)")
    reader = _Reader(text, mesh)
    body = text.partition("▸")[0]
    for opening, closing in ("[]", "()", "{}"):
        if body.count(opening) != body.count(closing):
            missing = closing if body.count(opening) > body.count(closing) else opening
            raise reader.error(f"a {missing!r} is missing", 'as in "f32[16/dp, 64]{sum: tp}" or "b/dp ..."')
    match = _WHOLE.match(body) or _BARE.match(body)
    if match is None:
        raise reader.error("this does not read as a layout", 'as in "f32[16/dp, 64]{sum: tp}" or "b/dp ..."')
    stated = match.groupdict().get("dtype")
    if stated is not None:
        dtype = reader.dtype(stated, dtype)
    if dtype is None:
        raise reader.error("the dtype is missing", f"f32[{match['dims'].strip()}]")
    terms = reader.terms(match["dims"])
    if shape is None:
        shape = reader.stated_shape(terms)
    for dim, term in enumerate(reader.spread(terms, shape)):
        reader.read_dim(term, dim, int(shape[dim]))
    reader.read_pending(match["pending"])
    return Layout(shape, dtype, mesh, [reader.placements.get(axis, Replicate()) for axis in mesh.axes])


class _Reader:
    """Reads the parts of one text; it holds what every error must name, and the placements found so far."""

    def __init__(self, text: str, mesh: Mesh) -> None:
        self.text = text
        self.mesh = mesh
        self.placements: dict[str, Placement] = {}

    def error(self, what: str, hint: str, shape: Sequence[int] | None = None) -> NotationError:
        layouts = {"tensor of shape": list(shape)} if shape is not None else None
        return NotationError(what, argument=repr(self.text), layouts=layouts, hint=hint)

    # --- sizes ---

    def dtype(self, name: str, known: torch.dtype | None) -> torch.dtype:
        found = DTYPES.get(name) or getattr(torch, name, None)
        if not isinstance(found, torch.dtype):
            raise self.error(f"{name!r} is no dtype", f"one of {', '.join(DTYPES)}")
        if known is not None and found != known:
            raise self.error(f"the tensor is {dtype_name(known)}, not {name}", f"write {dtype_name(known)}[...]")
        return found

    def terms(self, dims: str) -> list[str]:
        """The text of each dim."""
        left_over = _TERM.sub("", dims).replace(",", "").strip()
        if left_over:
            raise self.error(
                f"cannot read {left_over!r}", "dims are separated by spaces or commas; (a b/tp) is one dim"
            )
        return _TERM.findall(dims)

    def stated_shape(self, terms: list[str]) -> tuple[int, ...]:
        """The sizes that the text itself gives."""
        sizes = []
        for term in terms:
            parts = term.strip("()").split() if term[0] == "(" else [term]
            names = [part.partition("/")[0] for part in parts]
            if not all(name.isdecimal() for name in names):
                raise self.error(
                    f"the size of {term!r} is not known here", "integers for the sizes, as in f32[16/dp, 64]"
                )
            sizes.append(math.prod(int(name) for name in names))
        return tuple(sizes)

    def spread(self, terms: list[str], shape: Sequence[int]) -> list[str]:
        """One term a dim: ``...`` stands for as many undivided dims as are missing."""
        if terms.count("...") > 1:
            raise self.error("'...' stands twice", "use it once, for any number of undivided dims", shape)
        written = len(terms) - terms.count("...")
        missing = len(shape) - written
        if missing < 0 or (missing and "..." not in terms):
            raise self.error(
                f"{written} {'dim is' if written == 1 else 'dims are'} written, the tensor has {len(shape)}",
                "one term a dim, or '...' for any number of undivided ones",
                shape,
            )
        if "..." not in terms:
            return terms
        where = terms.index("...")
        return [*terms[:where], *(["_"] * missing), *terms[where + 1 :]]

    # --- one dim ---

    def read_dim(self, term: str, dim: int, size: int) -> None:
        """Place the axes of one dim."""
        if term.startswith("("):
            self.place_factors(self.factors(term, size), dim, term)
            return
        name, *axes = term.split("/")
        if not all(axes):
            raise self.error(f"{term!r} has a '/' without an axis", f"{name}/{self.mesh.axes[0]}")
        if name.isdecimal() and int(name) != size:
            raise self.error(f"{term!r} says {name}, the dim has {size}", f"write {size}, or any name")
        self.check_name(name, term)
        if any("~" in axis for axis in axes):
            self.place_strided(axes, dim, term)
        else:
            self.place_factors([Factor(size, tuple(axes))], dim, term)

    def factors(self, term: str, size: int) -> list[Factor]:
        """The factors of a parenthesised dim; one of them may leave its size open."""
        inner, _, rest = term[1:].partition(")")
        if rest:
            raise self.error(
                f"{rest!r} after a factored dim", "divide a factor inside the parentheses, as in (64 16/tp)"
            )
        named = [part.split("/") for part in inner.split()]
        for name, *_ in named:
            self.check_name(name, term)
        known = [int(name) if name.isdecimal() else None for name, *_ in named]
        product = math.prod(value for value in known if value is not None)
        open_count = known.count(None)
        fits = product and (size % product == 0 if open_count == 1 else product == size and not open_count)
        if not (named and fits):
            raise self.error(
                f"the factors of {term} do not give {size}", "integers from 1 for all factors but one, as in (64 b/tp)"
            )
        return [
            Factor(size // product if value is None else value, tuple(axes))
            for value, (_, *axes) in zip(known, named, strict=True)
        ]

    def check_name(self, name: str, term: str) -> None:
        if not re.match(r"\w+\Z", name):
            raise self.error(f"cannot read {term!r}", "a name or a size, then the axes: b/dp")

    # --- placements ---

    def claim(self, axis: str) -> None:
        """Check that an axis exists and is free, and take it."""
        try:
            self.mesh.axis_index(axis)
        except MeshError as error:
            raise self.error(error.what, error.hint or "") from None
        if axis in self.placements:
            raise self.error(f"axis {axis!r} is used twice", "an axis divides one dim, or is pending, once")
        self.placements[axis] = Replicate()

    def place_strided(self, axes: list[str], dim: int, term: str) -> None:
        """Place axes that state their split factors; they apply in mesh order, so they must stand in it."""
        found: list[tuple[str, int]] = []
        for written in axes:
            match = _STRIDED_AXIS.match(written)
            axis, split_factor = (match["axis"], int(match["split_factor"])) if match else (written, 1)
            if "~" in axis:
                raise self.error(
                    f"cannot read {written!r} in {term!r}", "a split factor from 1 after the axis: 10/tp~3"
                )
            self.claim(axis)
            found.append((axis, split_factor))
        order = [axis for axis, _ in sorted(found, key=lambda each: self.mesh.axis_index(each[0]))]
        if order != [axis for axis, _ in found]:
            raise self.error(
                f"the axes of {term!r} are out of order",
                f"where one has a split factor, in mesh order: {', '.join(order)}",
            )
        self.placements.update({axis: _shard(dim, split_factor) for axis, split_factor in found})

    def place_factors(self, factors: list[Factor], dim: int, term: str) -> None:
        """Place axes that stand at the factors that they divide."""
        for factor in factors:
            for axis in factor.axes:
                self.claim(axis)
        for factor in factors if len(factors) > 1 else ():
            if factor.size % math.prod(self.mesh.axis_size(axis) for axis in factor.axes):
                written = "/".join([str(factor.size), *factor.axes])
                raise self.error(
                    f"{written} in {term!r} does not divide evenly", "a factored dim can only be divided evenly"
                )
        for position, factor in enumerate(factors):
            for axis in factor.axes:
                self.placements[axis] = _shard(dim, self.split_factor(axis, position, factors))

    def split_factor(self, axis: str, position: int, factors: list[Factor]) -> int:
        """How many elements or pieces lie in front of the one that ``axis`` divides, when its turn comes."""
        turn = self.mesh.axis_index(axis)
        before = 1
        for factor in factors[:position]:
            done = [other for other in factor.axes if self.mesh.axis_index(other) < turn]
            before *= factor.size // math.prod(self.mesh.axis_size(other) for other in done)
        own = factors[position].axes
        outer = own[: own.index(axis)]
        return before * math.prod(self.mesh.axis_size(other) for other in outer if self.mesh.axis_index(other) > turn)

    def read_pending(self, text: str | None) -> None:
        """Place the axes of ``{sum: tp; max: dp}``."""
        for group in (text or "").strip().strip("{}").split(";"):
            if not group.strip():
                continue
            kind, colon, axes = (part.strip() for part in group.partition(":"))
            if kind not in _REDUCTIONS or not colon:
                raise self.error(
                    f"cannot read {{{group.strip()}}}", f"{{sum: tp}}, with one of {', '.join(_REDUCTIONS)}"
                )
            for axis in axes.split(","):
                self.claim(axis.strip())
                self.placements[axis.strip()] = Partial(kind)


def _shard(dim: int, split_factor: int) -> Placement:
    return StridedShard(dim, split_factor=split_factor) if split_factor != 1 else Shard(dim)
