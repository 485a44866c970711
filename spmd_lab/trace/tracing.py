"""`trace`: from a module or a function to the program of one device."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from spmd_lab.errors import TraceError, expect
from spmd_lab.progress import counting
from spmd_lab.torch_internals.export import load_exporter
from spmd_lab.trace.exporting import Export, MoreTensorsError, exported
from spmd_lab.trace.naming import named
from spmd_lab.trace.program import gather

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from spmd_lab.trace.values import TracedGraph

__all__ = ["trace", "trace_for_autograd"]


def trace(
    fn: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    backward: bool = True,
) -> TracedGraph:
    """Record the program that one device runs, forward and backward, in ATen operators.

    Nothing is computed and no memory is used: every tensor is stood for by a fake one. Tensors and modules that
    ``fn`` or ``loss`` close over become named inputs and parameters. The user's module, its hooks and the random
    state are left as they were. What lies in a ``torch.utils.checkpoint`` is marked, and `TracedGraph.notes` tells of
    it: `sl.distribute` computes it again in the backward, a graph that runs as a whole keeps it. Where torch looks at
    data only to refuse it, as distributions do with their parameters, the graph asserts what is wanted, on every rank.

    Parameters
    ----------
    fn : module or function
        What to trace.
    *args
        Its example arguments, nested as you like; tensors may be real, fake or on meta.
    kwargs : mapping, optional
        Its keyword arguments.
    loss : callable, optional
        Takes what ``fn`` returns and gives a scalar: the backward starts there. Without it every differentiable
        output has a tangent, which is an input of the program.
    backward : bool, optional
        False for the forward only.

    Returns
    -------
    TracedGraph
        The graph, its inputs and outputs by the user's names, and a reference to compare with.

    Raises
    ------
    TraceError
        If the program is not one graph (a branch on data, a seed set inside), if the arguments do not fit, or if the
        loss is no scalar. It names the line.

    Examples
    --------
    >>> import torch
    >>> traced = trace(torch.nn.Linear(3, 2), torch.ones(4, 3), loss=lambda out: out.square().mean())
    >>> [(each.name, each.role) for each in traced.inputs]
    [('weight', 'parameter'), ('bias', 'parameter'), ('input', 'input')]
    >>> [each.name for each in traced.outputs]
    ['loss', 'out', 'grad(weight)', 'grad(bias)']
    """
    return _traced(fn, args, kwargs, loss, backward)


def trace_for_autograd(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    loss: Callable[[Any], torch.Tensor] | None,
    *,
    backward: bool,
) -> TracedGraph:
    """As `trace`; but the tangent of a loss is an input, ``tangent(loss)``, so that autograd can start the backward.

    Examples
    --------
    >>> import torch
    >>> traced = trace_for_autograd(torch.nn.ReLU(), [torch.ones(4, requires_grad=True)], {}, torch.sum, backward=True)
    >>> [each.name for each in traced.inputs]
    ['input', 'tangent(loss)']
    """
    return _traced(fn, args, kwargs, loss, backward, open_loss=True)


def _traced(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    loss: Callable[[Any], torch.Tensor] | None,
    backward: bool,
    *,
    open_loss: bool = False,
) -> TracedGraph:
    if not callable(fn):
        raise TraceError(
            f"{type(fn).__name__} cannot be called",
            argument="fn",
            hint="a torch.nn.Module or a function, and then its arguments: trace(model, x), not trace(model(x))",
        )
    if loss is not None and not callable(loss):
        raise TraceError(
            f"{type(loss).__name__} cannot be called",
            argument="loss",
            hint="a function of what the program returns, giving a scalar",
        )
    expect({} if kwargs is None else kwargs, Mapping, "kwargs", 'keyword arguments by name: kwargs={"mask": mask}')
    expect(backward, bool, "backward", "True, or False for the forward only")
    load_exporter()
    fn, loss = _as_written(fn), None if loss is None else _as_written(loss)
    program = gather(fn, args, dict(kwargs or {}), loss)
    with _collector_paused(), counting(f"tracing {program.name}") as done:
        export = Export(program, backward, done)
        try:
            joint = exported(export)
        except MoreTensorsError as more:
            export = Export(gather(fn, args, dict(kwargs or {}), loss, more.found), backward, done, adopts=False)
            joint = exported(export)
        return named(export, joint, open_loss=open_loss)


def _as_written(fn: Callable[..., Any]) -> Callable[..., Any]:
    """What ``torch.compile`` was given, where it was: the compiled program cannot be traced."""
    written = getattr(fn, "_orig_mod", None) if isinstance(fn, nn.Module) else None
    written = written or getattr(fn, "_torchdynamo_orig_callable", None)
    return written if callable(written) else fn


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Let Python collect garbage afterwards: an export makes many objects, and looking through them is slow."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
