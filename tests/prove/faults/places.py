"""Places in the graphs of ranks where something can be broken, and what a mistake is."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import fx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import spmd_lab as sl

aten = torch.ops.aten
c10d = torch.ops._c10d_functional
ALL_REDUCE, WAIT = c10d.all_reduce.default, c10d.wait_tensor.default
ALL_GATHER, REDUCE_SCATTER = c10d.all_gather_into_tensor.default, c10d.reduce_scatter_tensor.default
ALL_TO_ALL = torch.ops._dtensor.shard_dim_alltoall.default
COLLECTIVES = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL)

Site = tuple[str, object, int]
"""A node in the graph of any rank: its step, what it calls, and which of those it is."""


@dataclass(frozen=True)
class Mistake:
    """One thing that is broken.

    Parameters
    ----------
    step : str
        The step that the proof has to name.
    where : str
        What is broken there.
    make : callable
        Takes the right program, gives the broken one.
    """

    step: str
    where: str
    make: Callable[[sl.Program], sl.Program]


def sites(graph: fx.Graph) -> dict[Site, fx.Node]:
    """Every call of a graph by its place: the same on all ranks, whatever their nodes are called."""
    count: dict[tuple[str, object], int] = defaultdict(int)
    found: dict[Site, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "call_function":
            key = (str(node.meta.get("spmd_step")), node.target)
            found[(*key, count[key])] = node
            count[key] += 1
    return found


def calls(program: sl.Program, *targets: object) -> Iterator[tuple[Site, fx.Node]]:
    """The places where a program calls an operator and the result is read."""
    for site, node in sites(program.graph_module.graph).items():
        if node.target in targets and node.users:
            yield site, node


def mistake(site: Site, change: Callable[[fx.Node, int], None]) -> Mistake:
    """Change one place on every rank, as a pass does; the change is told the rank."""

    def everywhere(module: fx.GraphModule, rank: int) -> None:
        change(sites(module.graph)[site], rank)

    step, target, number = site
    return Mistake(step, f"{target} {number}", lambda program: program.rewrite(everywhere))


def bypass(node: fx.Node, rank: int) -> None:
    """Let what a node is given be read instead of what it makes."""
    node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]


def argument(position: int, value: object) -> Callable[[fx.Node, int], None]:
    """Call an operator with another argument."""
    return lambda node, rank: node.update_arg(position, value)  # type: ignore[arg-type]


def insert(after: fx.Node, target: object, *rest: object) -> fx.Node:
    """Let an operator run on what a node holds, and everyone read that instead; it is a node like that one."""
    with after.graph.inserting_after(after):
        new = after.graph.call_function(target, (after, *rest))  # type: ignore[arg-type]
    after.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
    new.meta = dict(after.meta)
    after.meta.pop("spmd_value", None)
    return new
