"""Which elements of a dim a rank holds: the element map behind every layout, as runs of indices.

The maps are those of ``torch.distributed.tensor``: `Shard` splits as ``torch.chunk`` does, and
``_StridedShard`` splits into ``split_factor`` blocks first, then takes a piece of every block.
"""

from __future__ import annotations

import math
from itertools import permutations
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Run",
    "Split",
    "chunk_bounds",
    "chunk_size",
    "held_lengths",
    "held_runs",
    "order_factor",
    "piece_lengths",
    "runs_length",
    "split_order",
]

Run = tuple[int, int]
"""A run of consecutive indices: first, and one past the last."""


class Split(NamedTuple):
    """One division of a dim over one mesh axis."""

    axis: str
    axis_size: int
    split_factor: int = 1


def chunk_size(size: int, pieces: int) -> int:
    """The size of the largest piece when ``torch.chunk`` splits ``size`` elements.

    Examples
    --------
    >>> chunk_size(5, 4)
    2
    """
    return -(-size // pieces)


def chunk_bounds(size: int, pieces: int, index: int) -> Run:
    """The elements of piece ``index``; later pieces may be short or empty.

    Examples
    --------
    >>> [chunk_bounds(5, 4, index) for index in range(4)]
    [(0, 2), (2, 4), (4, 5), (5, 5)]
    """
    step = chunk_size(size, pieces)
    return min(index * step, size), min((index + 1) * step, size)


def held_runs(size: int, splits: tuple[Split, ...], indices: tuple[int, ...]) -> tuple[Run, ...]:
    """The elements that remain after dividing a dim by each split in turn.

    Parameters
    ----------
    size : int
        The global size of the dim.
    splits : tuple of Split
        The divisions, in mesh-axis order.
    indices : tuple of int
        The rank's index along the axis of each split.

    Returns
    -------
    tuple of (int, int)
        Runs of global indices, in the order in which the rank stores them.

    Examples
    --------
    >>> held_runs(16, (Split("dp", 2, 4), Split("tp", 4)), (1, 2))
    ((10, 12),)
    >>> held_runs(8, (Split("tp", 2, 2),), (1,))
    ((2, 4), (6, 8))
    """
    runs: tuple[Run, ...] = ((0, size),) if size else ()
    for split, index in zip(splits, indices, strict=True):
        length = runs_length(runs)
        taken: list[Run] = []
        for block in range(split.split_factor):
            first, last = chunk_bounds(length, split.split_factor, block)
            start, stop = chunk_bounds(last - first, split.axis_size, index)
            _append_slice(taken, runs, first + start, first + stop)
        runs = tuple(taken)
    return runs


def piece_lengths(length: int, split: Split) -> frozenset[int]:
    """The different lengths of the pieces of one division.

    Examples
    --------
    >>> sorted(piece_lengths(5, Split("dp", 4)))
    [0, 1, 2]
    """
    if length % (split.split_factor * split.axis_size) == 0:
        return frozenset({length // split.axis_size})
    block, last_block = chunk_size(length, split.split_factor), length % chunk_size(length, split.split_factor)
    blocks = length // block
    return frozenset(
        blocks * _piece_length(block, split.axis_size, index) + _piece_length(last_block, split.axis_size, index)
        for index in range(split.axis_size)
    )


def held_lengths(size: int, splits: tuple[Split, ...]) -> list[frozenset[int]]:
    """The different lengths that ranks hold of a dim: whole, then after each split in turn.

    Examples
    --------
    >>> [sorted(lengths) for lengths in held_lengths(5, (Split("dp", 2), Split("tp", 2)))]
    [[5], [2, 3], [1, 2]]
    """
    lengths = [frozenset({size})]
    for split in splits:
        lengths.append(frozenset().union(*(piece_lengths(length, split) for length in lengths[-1])))
    return lengths


def split_order(splits: tuple[Split, ...]) -> tuple[str, ...] | None:
    """The order of axes, outermost first, that these split factors stand for; None if there is no such order.

    Examples
    --------
    >>> split_order((Split("dp", 2, 4), Split("tp", 4)))
    ('tp', 'dp')
    """
    if all(split.split_factor == 1 for split in splits):
        return tuple(split.axis for split in splits)
    for order in permutations(splits):
        if all(order_factor(split, order, splits) == split.split_factor for split in splits):
            return tuple(split.axis for split in order)
    return None


def order_factor(split: Split, order: Sequence[Split], splits: Sequence[Split]) -> int:
    """The split factor of one division: how many pieces there are before it, over axes that stand later on the mesh.

    Parameters
    ----------
    split : Split
        One of ``splits``.
    order, splits : sequence of Split
        All divisions of the dim: outermost first, and in mesh-axis order.
    """
    places = [each.axis for each in splits]
    later = places[places.index(split.axis) + 1 :]
    outer = order[: [each.axis for each in order].index(split.axis)]
    return math.prod(other.axis_size for other in outer if other.axis in later)


def runs_length(runs: tuple[Run, ...]) -> int:
    """How many elements the runs hold together."""
    return sum(stop - start for start, stop in runs)


def _piece_length(size: int, pieces: int, index: int) -> int:
    start, stop = chunk_bounds(size, pieces, index)
    return stop - start


def _append_slice(taken: list[Run], runs: tuple[Run, ...], start: int, stop: int) -> None:
    """Append elements ``start`` to ``stop`` of the concatenated runs, joining neighbours."""
    position = 0
    for first, last in runs:
        low, high = max(start, position), min(stop, position + last - first)
        if low < high:
            piece = (first + low - position, first + high - position)
            if taken and taken[-1][1] == piece[0]:
                taken[-1] = (taken[-1][0], piece[1])
            else:
                taken.append(piece)
        position += last - first
