"""The usual ways to divide layers, and parameters at rest: rules for whole models in a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from spmd_lab.errors import PatternError, expect
from spmd_lab.expand.redistribute import divided_further

if TYPE_CHECKING:
    from spmd_lab.layout import Layout

__all__ = ["AtRest", "Style", "colwise", "fsdp", "rowwise"]


@dataclass(frozen=True, repr=False)
class Style:
    """How a layer is divided: by the columns or the rows of its matrix (made by `colwise` and `rowwise`)."""

    kind: Literal["colwise", "rowwise"]
    axis: str

    def __repr__(self) -> str:
        return f"{self.kind}(axis={self.axis!r})"


def colwise(*modules: str, axis: str) -> dict[str, Style]:
    """Divide layers by their output features, as the first of two matrices in tensor parallelism.

    A Linear's weight ``[out, in]`` and bias ``[out]`` are divided at ``out``, so is a Conv1D ``[in, out]``
    of transformers; an Embedding ``[rows, features]`` at its features. What comes out is divided by features.

    Parameters
    ----------
    *modules : str
        Patterns over module names: ``*`` is one component, ``**`` any number.
    axis : str
        The mesh axis.

    Returns
    -------
    dict
        For ``params=``; unite several with ``|``.

    References
    ----------
    M. Shoeybi et al., "Megatron-LM", 2019, section 3.

    Examples
    --------
    >>> colwise("**.q", "**.k", axis="tp") | rowwise("**.o", axis="tp")
    {'**.q': colwise(axis='tp'), '**.k': colwise(axis='tp'), '**.o': rowwise(axis='tp')}
    """
    return _styled("colwise", modules, axis)


def rowwise(*modules: str, axis: str) -> dict[str, Style]:
    """Divide layers by their input features, as the second of two matrices in tensor parallelism.

    A Linear's weight ``[out, in]`` is divided at ``in``, its bias stays whole; a Conv1D ``[in, out]`` likewise; an
    Embedding ``[rows, features]`` is divided by rows. The output is a pending sum over the axis.

    Parameters
    ----------
    *modules : str
        Patterns over module names, as for `colwise`.
    axis : str
        The mesh axis.

    Returns
    -------
    dict
        For ``params=``; unite several with ``|``.

    Examples
    --------
    >>> rowwise("**.down", axis="tp")
    {'**.down': rowwise(axis='tp')}
    """
    return _styled("rowwise", modules, axis)


@dataclass(frozen=True, repr=False)
class AtRest:
    """How parameters rest: as they are used, and divided further over some axes (made by `fsdp`)."""

    axes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"fsdp({', '.join(map(repr, self.axes))})"

    def layout(self, used: Layout) -> Layout:
        """Where a parameter rests that is used in a layout; axes that it is divided over already are taken."""
        taken = {split.axis for dim in range(len(used.global_shape)) for split in used.splits(dim)} | set(used.pending)
        for axis in self.axes if used.global_shape else ():
            used = used if axis in taken else divided_further(used, axis, 0)
        return used


def fsdp(*axes: str) -> dict[str, AtRest]:
    """Let every parameter rest divided at dim 0, below what divides it in use: for ``stored=``.

    A parameter that is used as ``o/tp i`` rests as ``o/tp/dp i``, one that is used whole as ``o/dp i``. 0-d parameters,
    and buffers, rest as they are used.

    Parameters
    ----------
    *axes : str
        The mesh axes, outermost first.

    Returns
    -------
    dict
        For ``stored=``. Rules in front of it win: ``{"norm.**": None} | fsdp("dp")`` lets some rest as they are used.

    References
    ----------
    S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020.
    Y. Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", 2023.

    Examples
    --------
    >>> import torch, spmd_lab as sl
    >>> traced, mesh = sl.trace(torch.nn.Linear(4, 8), torch.zeros(8, 4)), sl.Mesh(dp=2, tp=2)
    >>> expansion = sl.expand(traced, mesh, params={"weight": "o/tp i"}, batch="dp", stored=sl.fsdp("dp"))
    >>> expansion.layout("weight"), expansion.layout("gather:weight")
    (f32[8/tp/dp, 4], f32[8/tp, 4])
    """
    if not axes:
        raise PatternError("fsdp names no axis", argument="fsdp()", hint='fsdp("dp")')
    for axis in axes:
        expect(axis, str, f"fsdp({axis!r})", "the name of a mesh axis, as text")
    return {"**": AtRest(axes)}


def _styled(kind: Literal["colwise", "rowwise"], modules: tuple[str, ...], axis: str) -> dict[str, Style]:
    if not modules:
        raise PatternError(
            f"{kind} names no layer", argument=f"{kind}(axis={axis!r})", hint=f'{kind}("**.q", axis=...)'
        )
    expect(axis, str, f"{kind}(axis={axis!r})", "the name of a mesh axis, as text")
    for pattern in modules:
        expect(pattern, str, f"{kind}({pattern!r})", "a pattern over the names of layers, as text")
    return {pattern: Style(kind, axis) for pattern in modules}
