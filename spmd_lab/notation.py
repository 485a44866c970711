"""One notation for a tensor on a mesh, printed and read back.

``f32[16/dp, 64]`` divides dim 0 over axis dp; ``16/dp/tp`` over dp first, then each piece over tp;
``(64 16/tp)`` is a flattened dim whose inner factor is divided; ``{sum: tp}`` is a pending sum.
Where no order of axes and no factors describe a strided placement, ``10/tp~3`` gives its split factor.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.elements import split_order
from spmd_lab.errors import MeshError, NotationError
from spmd_lab.layout import Layout
from spmd_lab.torch_internals.placements import StridedShard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.elements import Split
    from spmd_lab.mesh import Mesh

__all__ = ["dtype_name", "format_layout", "format_local_sizes", "parse_layout"]

_DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
    "u64": torch.uint64, "u32": torch.uint32, "u16": torch.uint16, "u8": torch.uint8,
    "bool": torch.bool, "c128": torch.complex128, "c64": torch.complex64, "c32": torch.complex32,
    "f8e4m3fn": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_REDUCTIONS = ("sum", "avg", "max", "min", "product")
_WHOLE = re.compile(r"\s*(?P<dtype>\w+)\s*\[(?P<dims>[^\]]*)\]\s*(?P<pending>\{.*\})?\s*\Z", re.DOTALL)
_BARE = re.compile(r"(?P<dims>[^{}]*)(?P<pending>\{.*\})?\s*\Z", re.DOTALL)
_TERM = re.compile(r"\([^()]*\)[^\s,()]*|\.\.\.|[^\s,()]+")


class _Factor(NamedTuple):
    """One factor of a dim, and the axes that divide it, outermost first."""

    size: int
    axes: tuple[str, ...]


def dtype_name(dtype: torch.dtype) -> str:
    """The short name of a dtype: ``f32``, ``i64``, ``bool``."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))


# --- printing -----------------------------------------------------------------------------------


def format_layout(layout: Layout) -> str:
    """The notation of a layout, as `parse_layout` reads it back."""
    dims = ", ".join(format_dim(size, layout.splits(dim)) for dim, size in enumerate(layout.global_shape))
    return f"{dtype_name(layout.dtype)}[{dims}]{format_pending(layout.pending)}"


def format_pending(pending: dict[str, str]) -> str:
    """``{sum: dp, tp}``: the axes of each kind of pending reduction."""
    if not pending:
        return ""
    kinds = {kind: [axis for axis, found in pending.items() if found == kind] for kind in pending.values()}
    return "{" + "; ".join(f"{kind}: {', '.join(axes)}" for kind, axes in kinds.items()) + "}"


def format_local_sizes(layout: Layout) -> str:
    """What ranks hold: ``[2, 64]`` where all hold as much, else the distinct shards in rank order."""
    if not layout.uneven_axes:
        return str(list(layout.largest_local_shape))
    shapes = [str(list(layout.local_shape(rank))) for rank in _distinct_ranks(layout)]
    return " ".join(shapes if len(shapes) <= 8 else [*shapes[:6], "...", shapes[-1]])


def _distinct_ranks(layout: Layout) -> list[int]:
    """One rank for each shard: index 0 along every axis that does not divide the tensor unevenly."""
    mesh, moving = layout.mesh, layout.uneven_axes
    ranks = [0]
    for position, axis in enumerate(mesh.axes):
        if axis in moving:
            stride = math.prod(mesh.shape[position + 1 :])
            ranks = [rank + index * stride for rank in ranks for index in range(mesh.shape[position])]
    return ranks


def format_dim(size: int, splits: tuple[Split, ...]) -> str:
    """One dim: its size, and the axes that divide it."""
    order = split_order(splits)
    if order is not None:
        return "/".join([str(size), *order])
    factors = _factors_of(size, splits)
    if factors is not None:
        return "(" + " ".join("/".join([str(factor.size), *factor.axes]) for factor in factors) + ")"
    return "/".join([str(size), *(f"{s.axis}~{s.split_factor}" if s.split_factor != 1 else s.axis for s in splits)])


def _factors_of(size: int, splits: tuple[Split, ...]) -> list[_Factor] | None:
    """The factors of a dim that these split factors divide evenly, if there are such."""
    sizes = {split.axis: split.axis_size for split in splits}
    factors = [_Factor(size, ())]
    for split in splits:
        placed = _place(factors, split, sizes)
        if placed is None:
            return None
        factors = placed
    return _joined(factors, sizes)


def _local(factor: _Factor, sizes: dict[str, int]) -> int:
    return factor.size // math.prod(sizes[axis] for axis in factor.axes)


def _place(factors: list[_Factor], split: Split, sizes: dict[str, int]) -> list[_Factor] | None:
    """Divide the factor in front of which ``split_factor`` elements lie, cutting one in two where it must."""
    before = 1
    for position, factor in enumerate(factors):
        local = _local(factor, sizes)
        if before == split.split_factor:
            if local % split.axis_size:
                return None
            divided = _Factor(factor.size, (*factor.axes, split.axis))
            return [*factors[:position], divided, *factors[position + 1 :]]
        front, rest = divmod(split.split_factor, before)
        if front < local:
            if rest or local % front or (local // front) % split.axis_size:
                return None
            cut = local // front
            pieces = [_Factor(factor.size // cut, factor.axes), _Factor(cut, (split.axis,))]
            return [*factors[:position], *pieces, *factors[position + 1 :]]
        before *= local
    return None


def _joined(factors: list[_Factor], sizes: dict[str, int]) -> list[_Factor]:
    """Join neighbours that are one factor: an undivided inner one, or one divided down to single elements."""
    joined = [factors[0]]
    for factor in factors[1:]:
        last = joined[-1]
        if not factor.axes or _local(last, sizes) == 1:
            joined[-1] = _Factor(last.size * factor.size, last.axes + factor.axes)
        else:
            joined.append(factor)
    return joined


# --- reading ------------------------------------------------------------------------------------


def parse_layout(text: str, mesh: Mesh, shape: Sequence[int] | None = None, dtype: torch.dtype | None = None) -> Layout:
    """Read a layout; see `Layout.parse`."""
    reader = _Reader(text, mesh)
    body = text.partition("▸")[0]
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
    placements: dict[str, Placement] = {}
    for dim, term in enumerate(reader.spread(terms, shape)):
        reader.read_dim(term, dim, int(shape[dim]), placements)
    reader.read_pending(match["pending"], placements)
    return Layout(shape, dtype, mesh, [placements.get(axis, Replicate()) for axis in mesh.axes])


class _Reader:
    """Reads the parts of one text; it holds what every error must name."""

    def __init__(self, text: str, mesh: Mesh) -> None:
        self.text = text
        self.mesh = mesh

    def error(self, what: str, hint: str, shape: Sequence[int] | None = None) -> NotationError:
        layouts = {"tensor of shape": list(shape)} if shape is not None else None
        return NotationError(what, argument=repr(self.text), layouts=layouts, hint=hint)

    def dtype(self, name: str, known: torch.dtype | None) -> torch.dtype:
        found = _DTYPES.get(name) or getattr(torch, name, None)
        if not isinstance(found, torch.dtype):
            raise self.error(f"{name!r} is no dtype", f"one of {', '.join(_DTYPES)}")
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
        missing = len(shape) - (len(terms) - terms.count("..."))
        if missing < 0 or (missing and "..." not in terms):
            raise self.error(
                f"{len(terms) - terms.count('...')} dims are written, the tensor has {len(shape)}",
                "one term a dim, or '...' for any number of undivided ones",
                shape,
            )
        if "..." not in terms:
            return terms
        where = terms.index("...")
        return [*terms[:where], *(["_"] * missing), *terms[where + 1 :]]

    def read_dim(self, term: str, dim: int, size: int, placements: dict[str, Placement]) -> None:
        """Place the axes of one dim."""
        if term.startswith("("):
            inner, _, rest = term[1:].partition(")")
            if rest:
                raise self.error(
                    f"{rest!r} after a factored dim", "divide a factor inside the parentheses, as in (64 16/tp)"
                )
            factors = self.factors(inner.split(), size)
        else:
            name, *axes = term.split("/")
            self.assert_size(name, size, term)
            factors = [_Factor(size, tuple(axes))]
        for factor in factors:
            for axis in factor.axes:
                self.claim(axis.partition("~")[0], placements)
        placements.update(self.placed(factors, dim, term))

    def placed(self, factors: list[_Factor], dim: int, term: str) -> dict[str, Placement]:
        """The placement of each axis, given the factors that they divide."""
        stated = {name: int(split) for axis in factors[0].axes for name, _, split in [axis.partition("~")] if split}
        if stated:
            plain = [axis.partition("~")[0] for axis in factors[0].axes]
            return {axis: _shard(dim, stated.get(axis, 1)) for axis in plain}
        sizes = {axis: self.mesh.axis_size(axis) for factor in factors for axis in factor.axes}
        if len(factors) > 1:
            for factor in factors:
                if factor.size % math.prod(sizes[axis] for axis in factor.axes):
                    written = "/".join([str(factor.size), *factor.axes])
                    raise self.error(
                        f"{written} in {term!r} does not divide evenly", "a factored dim can only be divided evenly"
                    )
        return {
            axis: _shard(dim, self.split_factor(axis, position, factors, sizes))
            for position, factor in enumerate(factors)
            for axis in factor.axes
        }

    def split_factor(self, axis: str, position: int, factors: list[_Factor], sizes: dict[str, int]) -> int:
        """How many elements or pieces lie in front of the one that ``axis`` divides, when its turn comes."""
        turn = self.mesh.axis_index(axis)
        before = 1
        for factor in factors[:position]:
            done = [other for other in factor.axes if self.mesh.axis_index(other) < turn]
            before *= factor.size // math.prod(sizes[other] for other in done)
        own = factors[position].axes
        outer = own[: own.index(axis)]
        return before * math.prod(sizes[other] for other in outer if self.mesh.axis_index(other) > turn)

    def factors(self, parts: list[str], size: int) -> list[_Factor]:
        """The factors of a parenthesised dim; one of them may leave its size open."""
        named = [part.split("/") for part in parts]
        known = [int(name) if name.isdecimal() else None for name, *_ in named]
        product = math.prod(value for value in known if value is not None)
        open_count = known.count(None)
        if open_count > 1 or (size % product if open_count else product != size):
            raise self.error(
                f"the factors of ({' '.join(parts)}) do not give {size}",
                "integers for all factors but one, as in (64 b/tp)",
            )
        return [
            _Factor(size // product if value is None else value, tuple(axes))
            for value, (_, *axes) in zip(known, named, strict=True)
        ]

    def assert_size(self, name: str, size: int, term: str) -> None:
        if name.isdecimal() and int(name) != size:
            raise self.error(f"{term!r} says {name}, the dim has {size}", f"write {size}, or any name")
        if not re.match(r"\w+\Z", name):
            raise self.error(f"cannot read {term!r}", "a name or a size, then the axes: b/dp")

    def claim(self, axis: str, placements: dict[str, Placement]) -> None:
        """Check that an axis exists and is free."""
        try:
            self.mesh.axis_index(axis)
        except MeshError as error:
            raise self.error(error.what, error.hint or "") from None
        if axis in placements:
            raise self.error(f"axis {axis!r} is used twice", "an axis divides one dim, or is pending, once")
        placements[axis] = Replicate()

    def read_pending(self, text: str | None, placements: dict[str, Placement]) -> None:
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
                self.claim(axis.strip(), placements)
                placements[axis.strip()] = Partial(kind)


def _shard(dim: int, split_factor: int) -> Placement:
    return StridedShard(dim, split_factor=split_factor) if split_factor != 1 else Shard(dim)
