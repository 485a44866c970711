"""A program cut in two: what runs when the module is called, and what runs when autograd comes back."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import fx

from spmd_lab.errors import RebuildError
from spmd_lab.expand.anew import needed_by
from spmd_lab.run.memory import lent_inputs, reduce_in_place
from spmd_lab.run.recompute import draws, in_time, recomputed
from spmd_lab.torch_internals.boxed import take_list

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

__all__ = ["Halves", "split"]


@dataclass(frozen=True)
class Halves:
    """The forward and the backward of one rank's program; together they have every node of it, checkpointed ones twice.

    Parameters
    ----------
    forward : torch.fx.GraphModule
        Takes every input but the tangents; returns the ``results`` first outputs, then the values to save.
    backward : torch.fx.GraphModule
        Takes a list, which it empties, of the saved values, then the tangents; returns the gradients.
    results : int
        How many outputs of the forward are results.
    lent : tuple of int
        The inputs of the backward whose memory a gradient may share.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule
    results: int
    lent: tuple[int, ...]


def split(
    program: fx.GraphModule,
    tangents: Collection[int],
    gradients: Collection[int],
    written: Collection[int] = (),
    *,
    compiled: bool = False,
) -> Halves:
    """Cut a flat program where the forward ends.

    The forward is what its outputs need, and its random draws, and nothing more: a value that only gradients need is
    computed in the backward, from less that has to be kept until then. So is, once more, what a checkpoint of the
    user's does not keep, just before it is read. A draw is where it was in the program: later, it would give other
    numbers, and all draws in between too. What ranks have told each other is kept.

    Parameters
    ----------
    program : torch.fx.GraphModule
        Flat: tensors in, a tuple out.
    tangents : collection of int
        Which of its inputs are tangents.
    gradients : collection of int
        Which of its outputs are gradients.
    written : collection of int
        The inputs whose storage will be overwritten when the forward has run: it works on copies of them.
    compiled : bool
        Whether ``torch.compile`` makes the code that runs, at the first call; else operators run one by one.

    Raises
    ------
    RebuildError
        If an output of the forward depends on a tangent.

    Examples
    --------
    >>> def program(x, tangent):
    ...     y = torch.ops.aten.tanh.default(x)
    ...     return y, torch.ops.aten.tanh_backward.default(tangent, y)
    >>> halves = split(fx.symbolic_trace(program), tangents={1}, gradients={1})
    >>> y, saved = halves.forward(torch.tensor(0.0))
    >>> halves.backward([saved, torch.tensor(3.0)])
    (tensor(3.),)
    """
    inputs = program.graph.find_nodes(op="placeholder")
    (returned,) = program.graph.output_node().args
    assert isinstance(returned, tuple)
    late = {node for index, node in enumerate(inputs) if index in tangents}
    results = [value for index, value in enumerate(returned) if index not in gradients]
    wanted = [value for index, value in enumerate(returned) if index in gradients]
    early = needed_by(results)
    drawn = [needed_by([node]) for node in _forward_draws(program.graph)]
    early = early.union(*(needed for needed in drawn if not needed & late))
    _refuse_late_results(early & late, program)
    for node in program.graph.nodes:
        if node.target is operator.getitem and node.args[0] in early:
            early.add(node)  # what a node with several outputs makes exists as soon as that node has run
    early |= set(inputs) - late
    found = recomputed(program.graph, early, results, wanted)
    first = _Part(program, "Forward")
    for index, node in enumerate(inputs):
        if node not in late:
            first.take(node, private=index in written)
    first.copy(node for node in program.graph.nodes if node in early)
    second = _Part(program, "Backward", found.instead)
    for node in [*found.kept, *(each for each in inputs if each in late)]:
        second.take(node)
    second.copy(in_time(program.graph, early, found))
    forward, backward = first.finish([*results, *found.kept]), second.finish(wanted)
    halves = Halves(forward, take_list(backward), len(results), lent_inputs(backward.graph))
    return _compiled(halves) if compiled else _in_place(halves)


def _in_place(halves: Halves) -> Halves:
    """Halves whose collectives reduce where their data lies."""
    for half in (halves.forward, halves.backward):
        reduce_in_place(half.graph)
        half.recompile()
    return halves


def _compiled(halves: Halves) -> Halves:
    """Halves that the compiler makes one kernel of many operators of, with the random numbers of eager ones."""
    over = partial(torch.compile, fullgraph=True, dynamic=False, options={"fallback_random": True})
    forward, backward = (cast("fx.GraphModule", over(half)) for half in (halves.forward, halves.backward))
    return replace(halves, forward=forward, backward=backward)


def _forward_draws(graph: fx.Graph) -> list[fx.Node]:
    """The nodes of the forward that draw random numbers, read or not."""
    return [node for node in graph.nodes if draws(node) and node.meta.get("phase", "forward") == "forward"]


def _refuse_late_results(tangents: set[fx.Node], program: fx.GraphModule) -> None:
    if tangents:
        names = ", ".join(sorted(node.name for node in tangents))
        raise RebuildError(f"an output of the forward depends on {names}", node=type(program).__name__)


class _Part:
    """One half in the making."""

    def __init__(self, program: fx.GraphModule, name: str, instead: Mapping[fx.Node, fx.Node] | None = None) -> None:
        self._program = program
        self._instead = instead or {}
        self._name = f"{type(program).__name__}{name}"
        self._graph = fx.Graph()
        self._made: dict[fx.Node, fx.Node] = {}

    def take(self, node: fx.Node, *, private: bool = False) -> None:
        """Make a value an input of this half."""
        taken = self._graph.placeholder(node.name)
        taken.meta = dict(node.meta)
        self._made[node] = taken
        if private:
            self._made[node] = self._graph.call_function(torch.ops.aten.clone.default, (taken,))

    def copy(self, nodes: Iterable[fx.Node]) -> None:
        """Copy nodes that are no inputs."""
        for node in nodes:
            if node.op not in ("placeholder", "output"):
                self._made[node] = self._graph.node_copy(node, self._new)

    def _new(self, node: fx.Node) -> fx.Node:
        node = self._instead.get(node, node)
        if node not in self._made and node.op == "get_attr":
            self._made[node] = self._graph.node_copy(node)
        return self._made[node]

    def finish(self, returned: Sequence[Any]) -> fx.GraphModule:
        """Close this half with what it returns."""
        self._graph.output(tuple(fx.map_arg(returned, self._new)))
        self._graph.lint()
        return fx.GraphModule(self._program, self._graph, self._name)
