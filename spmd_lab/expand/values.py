"""The second stage: one step per operator, with what it has, needs and becomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from spmd_lab.drawn import Drawn
from spmd_lab.shown import Shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

    from spmd_lab.collectives import CollectiveKind
    from spmd_lab.layout import Layout
    from spmd_lab.show.picture import Picture
    from spmd_lab.trace.values import Phase, Source

__all__ = ["Collective", "Move", "Operand", "Redistribution", "Step", "ring_bytes"]

MoveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "slice", "split_pending"]


@dataclass(frozen=True)
class Move:
    """One elementary change of a layout, along one mesh axis.

    Parameters
    ----------
    kind : str
        A collective, or a local change: "slice" keeps this rank's part of a whole tensor, "split_pending" turns a
        whole tensor into pieces of a pending reduction.
    axis : str
        The mesh axis.
    before, after : Layout
        The layout on either side.
    """

    kind: MoveKind
    axis: str
    before: Layout
    after: Layout

    @property
    def is_collective(self) -> bool:
        """Whether ranks communicate."""
        return self.kind not in ("slice", "split_pending")


@dataclass(frozen=True)
class Redistribution:
    """How a tensor gets from the layout it has to the layout that is needed.

    Parameters
    ----------
    have, need : Layout
        The two ends.
    moves : tuple of Move
        What happens between them, in order.
    """

    have: Layout
    need: Layout
    moves: tuple[Move, ...]

    def draw(self, rank: int = 0) -> Picture:
        """Before and after, as a picture: what a rank gets from others is hatched."""
        from spmd_lab.records import draw_change

        return draw_change(self, rank)


@dataclass(frozen=True)
class Operand:
    """One tensor that a step reads.

    Parameters
    ----------
    name : str
        The user's name of an input, else the name of the step or node that made it.
    have, need : Layout
        The layout it arrives in, and the one that the local operator wants.
    redistribution : Redistribution or None
        How it gets there; None where it already is.
    """

    name: str
    have: Layout
    need: Layout
    redistribution: Redistribution | None

    @property
    def needs_redistribute(self) -> bool:
        """Whether anything has to happen before the local operator can run."""
        return self.redistribution is not None


def ring_bytes(kind: CollectiveKind, payload_bytes: int, group_size: int) -> int:
    """What a rank sends in a collective, by the formula of `Collective`.

    Examples
    --------
    >>> ring_bytes("all_reduce", 256, 4), ring_bytes("all_gather", 256, 4)
    (384, 192)
    """
    return (2 if kind == "all_reduce" else 1) * payload_bytes * (group_size - 1) // group_size


@dataclass(frozen=True, repr=False)
class Collective(Shown):
    """One communication between the ranks of one axis.

    ``sent_bytes_per_rank`` is that of the ring algorithm over a group of n ranks and a full message of B bytes
    (``payload_bytes``): all_gather, reduce_scatter and all_to_all send ``B (n-1)/n``, all_reduce ``2 B (n-1)/n``.
    Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005.

    Parameters
    ----------
    kind : str
        "all_reduce", "all_gather", "reduce_scatter" or "all_to_all".
    axes : tuple of str
        The mesh axes that it spans.
    group_size : int
        How many ranks take part.
    reduce_op : str or None
        "sum", "avg", "max", "min" or "product", where it reduces.
    payload_bytes : int
        The largest rank's full message: the gathered, the unreduced, or (all_to_all) the local tensor; padding of
        uneven shards included.
    sent_bytes_per_rank : int
        See above.
    phase, step, operand, source
        Where in the program it stands: phase, name of the step, name of the operand, line of the user.
    have, need : Layout
        The layout before and after this very collective.
    """

    kind: CollectiveKind
    axes: tuple[str, ...]
    group_size: int
    reduce_op: str | None
    payload_bytes: int
    sent_bytes_per_rank: int
    phase: Phase
    step: str
    operand: str
    source: Source | None
    have: Layout
    need: Layout


@dataclass(frozen=True, repr=False)
class Step(Drawn):
    """One operator of the traced program, expanded; or one parameter, gathered; or one pending output, resolved.

    Parameters
    ----------
    name : str
        The name of its node; ``gather:<parameter>``, or ``regather:<parameter>`` in the backward; ``resolve:<output>``.
    op : str
        The operator, as ``aten.mm.default``; "gather" for a parameter that rests otherwise than it is used, "resolve"
        for an output that comes out otherwise than it shall lie.
    source : Source or None
        The user's line.
    phase : str
        "forward" or "backward".
    operands : tuple of Operand
        The tensors that it reads, in order.
    outputs : tuple of Layout or None
        The layout of each output; None where an output is None or no tensor.
    collectives : tuple of Collective
        What the ranks say to each other in it.
    fallback : str or None
        Why everything was gathered instead of running on shards; None for a true expansion.
    draw_bytes : int
        What each rank draws at random, in bytes; 0 where nothing is drawn.
    draws_locally : bool
        Whether shards draw numbers of their own, which no single device draws.
    """

    name: str
    op: str
    source: Source | None
    phase: Phase
    operands: tuple[Operand, ...]
    outputs: tuple[Layout | None, ...]
    collectives: tuple[Collective, ...]
    fallback: str | None
    draw_bytes: int
    draws_locally: bool
    _subgraph: Callable[[int], fx.GraphModule] = field(repr=False, compare=False)

    @property
    def only_moves(self) -> bool:
        """Whether it runs no operator, but brings one value from one layout to another."""
        return self.op in ("gather", "resolve")

    @property
    def local_graph(self) -> fx.GraphModule:
        """The dispatch subgraph as rank 0 runs it: redistributions, collectives, the local operator."""
        return self.local_graph_for(0)

    def local_graph_for(self, rank: int) -> fx.GraphModule:
        """The dispatch subgraph as a given rank runs it."""
        return self._subgraph(rank)
