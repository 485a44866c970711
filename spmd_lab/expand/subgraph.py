"""The dispatch subgraph of one call: redistributions, collectives and the local operator, as each rank runs it.

Equal work is done once: a subgraph depends on the operator, the layouts and strides of its tensors and its constants,
and is kept for the next node, and for the next expansion. A rank's graph depends on its place on some axes only, often
on none; ranks that agree there share it.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import fx

from spmd_lab.expand.moves import emit_move
from spmd_lab.expand.redistribute import redistribution
from spmd_lab.local_graph import EmittedCollective, LocalGraphBuilder
from spmd_lab.rules import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    import torch

    from spmd_lab.expand.values import Redistribution
    from spmd_lab.layout import Layout
    from spmd_lab.mesh import Mesh

__all__ = ["LocalGraph", "Subgraph", "SubgraphCache", "forget_subgraphs", "known_subgraphs", "moving"]


@dataclass(frozen=True)
class LocalGraph:
    """What one rank runs for one call.

    Parameters
    ----------
    graph : torch.fx.Graph
        One placeholder per tensor of the call; no output node.
    inputs : tuple of torch.fx.Node
        The placeholders.
    outputs : tuple of (torch.fx.Node or None)
        The node of each output, flat.
    constants : dict
        The tensors that ``get_attr`` nodes name.
    depends_on : frozenset of str
        The axes on which the rank's place matters.
    collectives : tuple of EmittedCollective
        The collectives among the nodes, in order.
    """

    graph: fx.Graph
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node | None, ...]
    constants: dict[str, torch.Tensor]
    depends_on: frozenset[str]
    collectives: tuple[EmittedCollective, ...]

    @cached_property
    def body(self) -> tuple[fx.Node, ...]:
        """The nodes after the placeholders."""
        return tuple(self.graph.nodes)[len(self.inputs) :]


class SubgraphCache:
    """Subgraphs by what makes two calls equal work; those that were not asked for longest go first.

    Parameters
    ----------
    most : int
        How many are kept.
    """

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, Subgraph] = OrderedDict()

    def find(self, key: Hashable, build: Callable[[], Subgraph]) -> Subgraph:
        """The subgraph of a key, built where it is not known."""
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = build()
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(key)
        return found

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()


class Subgraph:
    """The dispatch subgraph of a planned call, built for the ranks that are asked for.

    Parameters
    ----------
    mesh : Mesh
        The mesh.
    have : tuple of Layout
        The layout that each tensor has.
    same_as : tuple of int
        For each tensor, the position of the first one that is the same value: it is redistributed once.
    plan : Plan
        What the call needs, and its local program.
    gives_tuple : bool
        Whether the operator returns several outputs.
    """

    def __init__(
        self, mesh: Mesh, have: tuple[Layout, ...], same_as: tuple[int, ...], plan: Plan, *, gives_tuple: bool
    ) -> None:
        self.mesh = mesh
        self.have = have
        self.same_as = same_as
        self.plan = plan
        self.gives_tuple = gives_tuple
        self.redistributions: tuple[Redistribution | None, ...] = tuple(
            redistribution(layout, need) for layout, need in zip(have, plan.needs, strict=True)
        )
        self._built: dict[tuple[int, ...], LocalGraph] = {}

    @cached_property
    def first(self) -> LocalGraph:
        """What rank 0 runs."""
        return self._build((0,) * self.mesh.ndim)

    def at(self, coordinate: tuple[int, ...]) -> LocalGraph:
        """What the rank at a coordinate runs; the same object for ranks that run the same."""
        place = tuple(
            index if axis in self.first.depends_on else 0
            for axis, index in zip(self.mesh.axes, coordinate, strict=True)
        )
        if not any(place):
            return self.first
        if place not in self._built:
            self._built[place] = self._build(coordinate)
        return self._built[place]

    def _build(self, coordinate: tuple[int, ...]) -> LocalGraph:
        graph = fx.Graph()
        inputs = tuple(graph.placeholder(f"operand{index}") for index in range(len(self.have)))
        builder = LocalGraphBuilder(graph, self.mesh, coordinate)
        arrived = self._redistribute(builder, inputs)
        builder.meta = {}
        made = self.plan.emit(builder, arrived)
        return LocalGraph(
            graph,
            inputs,
            self._flat_outputs(builder, made),
            builder.constants,
            frozenset(builder.depends_on),
            tuple(builder.collectives),
        )

    def _redistribute(self, builder: LocalGraphBuilder, inputs: tuple[fx.Node, ...]) -> tuple[fx.Node, ...]:
        arrived: list[fx.Node] = []
        for index, change in enumerate(self.redistributions):
            twin = self.same_as[index]
            if twin != index and self.plan.needs[twin] == self.plan.needs[index]:
                arrived.append(arrived[twin])
                continue
            node = inputs[index]
            builder.meta = {"spmd_operand": index}
            for move in change.moves if change else ():
                node = emit_move(builder, node, move)
            arrived.append(node)
        return tuple(arrived)

    def _flat_outputs(self, builder: LocalGraphBuilder, made: Any) -> tuple[fx.Node | None, ...]:
        """One node per output; a node that holds several is taken apart."""
        layouts = self.plan.outputs
        if isinstance(made, tuple):
            return made
        if not self.gives_tuple:
            return (made,)
        return tuple(
            None if layout is None else builder.call(operator.getitem, made, index)
            for index, layout in enumerate(layouts)
        )


known_subgraphs = SubgraphCache()
"""What is kept for the next node, and for the next expansion."""


def moving(have: Layout, need: Layout) -> Subgraph:
    """The subgraph that does nothing but redistribute; one for each pair of layouts."""

    def build() -> Subgraph:
        plan = Plan((need,), (need,), lambda _, nodes: nodes[0])
        return Subgraph(have.mesh, (have,), (0,), plan, gives_tuple=False)

    return known_subgraphs.find(("moving", have, need), build)


def forget_subgraphs() -> None:
    """Empty the cache of subgraphs: the next expansion builds each anew."""
    known_subgraphs.clear()
