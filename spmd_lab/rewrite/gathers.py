"""When parameters that rest divided are gathered: in groups, so that only a part of them is ahead of its use."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spmd_lab.expand import Step

__all__ = ["AT_ONCE", "due_at"]

AT_ONCE = 1 << 20
"""Bytes that are worth a message of their own."""


def due_at(steps: Iterable[Step]) -> dict[str, int]:
    """The position of the step in front of which each gather is sent, by its name: that of its group.

    A group is closed once it holds 1 MiB. It is sent in front of the step that first reads what the group before has
    gathered; the first group of each phase, in front of the first step.

    Examples
    --------
    >>> import torch, spmd_lab as sl
    >>> model = torch.nn.Linear(4, 2)
    >>> expansion = sl.spmd_expand(model, torch.ones(8, 4), mesh=sl.Mesh(dp=2), batch="dp", stored=sl.fsdp("dp"))
    >>> due_at(expansion.steps)
    {'gather:weight': 0, 'gather:bias': 0}
    """
    every = list(enumerate(steps))
    due: dict[str, int] = {}
    for phase in ("forward", "backward"):
        gathers = [(position, step) for position, step in every if step.op == "gather" and step.phase == phase]
        sent = read = next((position for position, step in every if step.phase == phase), 0)
        held = AT_ONCE
        for position, step in gathers:
            if held >= AT_ONCE:
                sent, read, held = read, position + 1, 0
            held += _gathered_bytes(step)
            due[step.name] = sent
    return due


def _gathered_bytes(step: Step) -> int:
    (layout,) = step.outputs
    assert layout is not None
    return layout.nbytes(layout.largest_local_shape)
