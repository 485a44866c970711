"""`rewrite`: a program whose graphs a user's own passes have changed."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from spmd_lab.collectives import group_argument, is_collective
from spmd_lab.errors import ArgumentError, RewriteError, SpmdLabError, nearest
from spmd_lab.rebuild import Program
from spmd_lab.rewrite.added import arguments_by_position, place_added
from spmd_lab.rewrite.bucket import bucket
from spmd_lab.rewrite.lean import lean
from spmd_lab.rewrite.overlap import overlap
from spmd_lab.rewrite.share import share

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spmd_lab.expand import Expansion

__all__ = ["PASSES", "rewrite"]

PASSES: Mapping[str, Callable[[fx.GraphModule, Expansion, int], None]] = {
    "lean": lean,
    "share": share,
    "overlap": overlap,
    "bucket": bucket,
}
"""The passes that have a name, in the order in which they do most."""


@dataclass(frozen=True)
class _Pass:
    """A callable: its name, whether it is given the rank, and the axes on which it makes other graphs of equal ones."""

    run: Callable[..., Any]
    name: str
    takes_rank: bool
    axes: frozenset[str]


def rewrite(program: Program, passes: Sequence[str | Callable[..., fx.GraphModule | None]]) -> Program:
    """Change what the ranks run, by passes of ours or of your own.

    Ours have names, and change what a program costs, not what it computes: "lean" leaves out what changes nothing,
    "share" does once what is done twice, "overlap" sends early and waits late, "bucket" lets small messages travel
    together (see `PASSES`, and the modules of these names).

    A pass of your own is called with the graph of a rank: a copy, whose nodes keep their ``meta`` (`Program` says what
    is in it), and whose collectives still name axes. It returns a graph module, or changes that one in place and
    returns None. Ranks that run the same graph share what becomes of it; but a pass that takes a parameter ``rank``, or
    a second one without a default, is called for every rank. Rank 0's graph is changed at once, the others when they
    are asked for.

    Nodes that a pass adds without a ``meta["spmd_step"]`` become part of the step that reads them, so that the proof
    names it. `Program.verify` judges the new program as it does any other: by the layouts and numbers of the expansion.

    Parameters
    ----------
    program : Program
        What `rebuild` returned, or this.
    passes : sequence of str or callable
        Names of ours; each other takes a ``torch.fx.GraphModule``, and the rank if it wants to.

    Returns
    -------
    Program
        A new one; the other stays as it is.

    Raises
    ------
    ArgumentError
        If a pass is neither callable nor the name of one of ours.
    RewriteError
        If a pass raises, returns what is no graph module, or makes a graph that does not hold together or takes and
        returns other values.

    Examples
    --------
    A pass that leaves out every reduction is found out, at the first step that needed one:

    >>> import torch, spmd_lab as sl
    >>> def unreduced(graph_module):
    ...     for node in graph_module.graph.nodes:
    ...         if node.target is torch.ops._c10d_functional.all_reduce.default:
    ...             node.replace_all_uses_with(node.args[0])
    ...     graph_module.graph.eliminate_dead_code()
    >>> expansion = sl.spmd_expand(torch.nn.Linear(4, 2), torch.ones(8, 4), mesh=sl.Mesh(dp=4), batch="dp")
    >>> report = expansion.program.rewrite(unreduced).verify()
    >>> report.ok, report.first_divergence.step.name
    (False, 'resolve:grad(weight)')
    """
    known = [_pass(each, program.expansion) for each in passes]
    mesh = program.expansion.mesh

    def make(place: tuple[int, ...]) -> fx.GraphModule:
        rank = mesh.rank(place)
        module = _copied(program.for_rank(rank))
        for each in known:
            module = _applied(each, module, rank)
        return module

    axes = program.rank_axes.union(*(each.axes for each in known))
    return Program(program.expansion, make((0,) * mesh.ndim), axes, make)


def _pass(given: Any, expansion: Expansion) -> _Pass:
    """Look at what is given as a pass."""
    hint = "a function from GraphModule to GraphModule; None where it changes the graph in place"
    if isinstance(given, str):
        if given in PASSES:
            ours = PASSES[given]
            uneven = frozenset[str]().union(*(layout.uneven_axes for layout in expansion.layouts.values()))
            return _Pass(lambda module, rank: ours(module, expansion, rank), given, takes_rank=True, axes=uneven)
        raise ArgumentError(
            f"no pass is called {given!r}",
            argument=f"rewrite({given!r})",
            hint=f"{nearest(given, PASSES)}; or " + hint,
        )
    if not callable(given) or isinstance(given, fx.GraphModule):
        raise ArgumentError(f"a pass cannot be a {type(given).__name__}", argument="rewrite(...)", hint=hint)
    takes_rank = _takes_rank(given)
    name = str(getattr(given, "__qualname__", type(given).__qualname__))
    return _Pass(given, name, takes_rank, frozenset(expansion.mesh.axes) if takes_rank else frozenset())


def _takes_rank(given: Callable[..., Any]) -> bool:
    """Whether a pass takes a parameter ``rank``, or needs a second argument, whatever it is called."""
    try:
        parameters = inspect.signature(given).parameters
    except (TypeError, ValueError):  # a callable of C says nothing
        return False
    if "rank" in parameters:
        return True
    places = [each for each in parameters.values() if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return len(places) > 1 and places[1].default is inspect.Parameter.empty


def _called(each: _Pass, module: fx.GraphModule, rank: int) -> Any:
    if not each.takes_rank:
        return each.run(module)
    by_name = inspect.signature(each.run).parameters.get("rank")
    if by_name is None or by_name.kind is by_name.POSITIONAL_ONLY:
        return each.run(module, rank)
    return each.run(module, rank=rank)


def _applied(each: _Pass, module: fx.GraphModule, rank: int) -> fx.GraphModule:
    """Run one pass on the graph of one rank, and see that what it gives is a program of the same values."""
    takes, gives = _ports(module.graph)

    def wrong(what: str, hint: str, node: str | None = None) -> RewriteError:
        return RewriteError(
            f"pass {each.name} {what} the graph of rank {rank}", pass_name=each.name, rank=rank, node=node, hint=hint
        )

    try:
        given = _called(each, module, rank)
    except SpmdLabError:
        raise
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), "")
        hint = "run it on program.for_rank(rank); the cause is chained to this error"
        raise wrong(f"raises {type(error).__name__} ({first}) on", hint) from error
    changed = module if given is None else given
    if not isinstance(changed, fx.GraphModule):
        kind = type(changed).__name__
        raise wrong(f"makes a {kind} of", "return the GraphModule, or None if it is changed in place")
    try:
        changed.graph.lint()
        arguments_by_position(changed.graph)
        changed.recompile()
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), "")
        raise wrong(f"breaks ({first})", "graph.lint() tells more; is a node read before it is made?") from error
    if _ports(changed.graph) != (takes, gives):
        inputs, outputs = _ports(changed.graph)
        what = f"leaves {len(inputs)} inputs and {outputs} outputs of {len(takes)} and {gives} in"
        raise wrong(what, "keep the placeholders, their order, and the tuple that is returned")
    lacking = next((each for each in changed.graph.nodes if is_collective(each) and not _is_complete(each)), None)
    if lacking is not None:
        hint = "the tensor first, the name of a mesh axis last"
        raise wrong(f"leaves a call of {lacking.target} without all of its arguments in", hint, lacking.name)
    place_added(changed.graph)
    return changed


def _is_complete(collective: fx.Node) -> bool:
    return len(collective.args) == group_argument(collective) + 1 and not collective.kwargs


def _copied(module: fx.GraphModule) -> fx.GraphModule:
    """A copy with nodes and constants of its own, their names and metadata kept."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    constants = {
        str(node.target): value.clone()
        if isinstance(value := getattr(module, str(node.target)), torch.Tensor)
        else value
        for node in graph.nodes
        if node.op == "get_attr"
    }
    return fx.GraphModule(constants, graph, type(module).__name__)


def _ports(graph: fx.Graph) -> tuple[list[str], int]:
    """The names of what goes in, and the number of what comes out."""
    returned: Any = next(node for node in reversed(graph.nodes) if node.op == "output").args[0]
    outputs = len(returned) if isinstance(returned, (tuple, list)) else 1
    return [str(node.target) for node in graph.nodes if node.op == "placeholder"], outputs
