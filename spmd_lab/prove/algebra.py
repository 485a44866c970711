"""The small algebra of states: what a collective does to a value that is whole, divided or pending on its axis.

A collective is only right in one of these states, and what moves data about does not complete a reduction. Numbers
cannot show a dropped reduction of zeros, or of noise; this can.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from torch.distributed.tensor import Partial, Replicate

if TYPE_CHECKING:
    from spmd_lab.layout import Layout
    from spmd_lab.mesh import Mesh
    from spmd_lab.prove.collectives import Request

__all__ = ["DIVIDED", "WHOLE", "Finding", "State", "in_words", "leads_to", "serves_as", "state_of", "transition"]

WHOLE, DIVIDED = "whole", "divided"
State = tuple[str, ...]
"""For each mesh axis "whole", "divided", or the kind of a pending reduction."""


class Finding(NamedTuple):
    """A place where the layouts do not follow from the nodes.

    Parameters
    ----------
    step, value : str
        The step, and the value or operand concerned.
    expected, got : str
        What should hold, and what does.
    reason : str
        In words.
    """

    step: str
    value: str
    expected: str
    got: str
    reason: str


def state_of(layout: Layout) -> State:
    """The state of a layout on each axis; an axis of one rank is whole, whatever it is called.

    Examples
    --------
    >>> from spmd_lab import Layout, Mesh
    >>> state_of(Layout.parse("f32[8/dp, 4]{sum: tp}", Mesh(dp=2, tp=4, pp=1)))
    ('divided', 'sum', 'whole')
    """
    return tuple(
        WHOLE
        if size == 1 or isinstance(placement, Replicate)
        else str(placement.reduce_op)
        if isinstance(placement, Partial)
        else DIVIDED
        for size, placement in zip(layout.mesh.shape, layout.placements, strict=True)
    )


def transition(state: str, request: Request) -> str | None:
    """The state on the axis of a collective once it is carried out; None where it must not be.

    Examples
    --------
    >>> from spmd_lab.prove.collectives import Request
    >>> transition("sum", Request("all_reduce", "tp", "sum")), transition("whole", Request("all_reduce", "tp", "sum"))
    ('whole', None)
    """
    pending = state not in (WHOLE, DIVIDED)
    if request.kind in ("all_reduce", "reduce_scatter"):
        after = WHOLE if request.kind == "all_reduce" else DIVIDED
        return after if pending and state == request.reduce_op else None
    if state != DIVIDED:
        return None
    return WHOLE if request.kind == "all_gather" else DIVIDED


def leads_to(reached: State, wanted: State) -> bool:
    """Whether data movement may turn one into the other: only what is whole can be divided, or made pending."""
    return all(here in (there, WHOLE) for here, there in zip(reached, wanted, strict=True))


@lru_cache(maxsize=4096)
def serves_as(held: Layout, wanted: Layout) -> bool:
    """Whether what the ranks hold by one layout is, as it is, what another one says, however the axes are called.

    Copies of the whole are the pieces of its own mean, maximum and minimum.

    Examples
    --------
    >>> from spmd_lab import Layout, Mesh
    >>> mesh = Mesh(dp=2, tp=2)
    >>> one, other = Layout.parse("f32[8/dp/tp]", mesh), Layout.parse("f32[8/tp/dp]", mesh)
    >>> whole, largest = Layout.parse("f32[8]", mesh), Layout.parse("f32[8]{max: tp}", mesh)
    >>> serves_as(one, one), serves_as(one, other), serves_as(whole, largest), serves_as(largest, whole)
    (True, False, True, False)
    """
    if held == wanted:
        return True
    states = zip(state_of(held), state_of(wanted), strict=True)
    if held.global_shape != wanted.global_shape or any(
        here != there and (here, there) not in _SERVES for here, there in states
    ):
        return False
    return all(
        held.runs(dim, coordinate) == wanted.runs(dim, coordinate)
        for coordinate in product(*map(range, held.mesh.shape))
        for dim in range(len(held.global_shape))
    )


_SERVES = frozenset({(WHOLE, "avg"), (WHOLE, "max"), (WHOLE, "min")})


def in_words(state: State, mesh: Mesh) -> str:
    """The state in words, axis by axis."""
    parts = [
        f"{here} over {axis}" if here in (WHOLE, DIVIDED) else f"a pending {here} over {axis}"
        for axis, here in zip(mesh.axes, state, strict=True)
    ]
    return ", ".join(parts)
