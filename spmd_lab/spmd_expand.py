"""Trace and expand in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spmd_lab.expand import Expansion, expand
from spmd_lab.trace import trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from spmd_lab.mesh import Mesh

__all__ = ["spmd_expand"]


def spmd_expand(
    fn: Callable[..., Any],
    *args: Any,
    mesh: Mesh,
    kwargs: Mapping[str, Any] | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    backward: bool = True,
    **placing: Any,
) -> Expansion:
    """Trace a program and expand it over a mesh.

    Parameters
    ----------
    fn, *args, kwargs, loss, backward
        As in `trace`.
    mesh : Mesh
        The mesh.
    **placing
        ``params``, ``inputs``, ``batch``, ``outputs``, ``pending``, ``unsupported``, ``random``, ``stored`` and
        ``regather``, as in `expand`.

    Returns
    -------
    Expansion
        Its neighbours are ``expansion.traced`` and ``expansion.program``.

    Raises
    ------
    SpmdLabError
        As `trace` and `expand` do.

    Examples
    --------
    >>> import torch, spmd_lab as sl
    >>> expansion = sl.spmd_expand(torch.nn.Linear(4, 2), torch.zeros(8, 4), mesh=sl.Mesh(dp=4), batch="dp")
    >>> len(expansion.collectives)
    2
    """
    return expand(trace(fn, *args, kwargs=kwargs, loss=loss, backward=backward), mesh, **placing)
