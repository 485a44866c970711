"""What can be wrong with where elements lie: dims, slices, the order of pieces, the ranks that hold them."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from torch import fx

from tests.prove.faults.places import (
    ALL_GATHER,
    ALL_TO_ALL,
    COLLECTIVES,
    WAIT,
    Mistake,
    argument,
    aten,
    calls,
    insert,
    mistake,
    sites,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import spmd_lab as sl
    from tests.prove.faults.places import Site


def wrong_dim(program: sl.Program) -> Iterator[Mistake]:
    """What a layout calls divided along one dim is divided along another."""
    for site, _ in calls(program, ALL_TO_ALL):
        yield mistake(site, _dims_exchanged)
    for site, node in calls(program, aten.cat.default):
        if "spmd_operand" in node.meta and len(node.args) == 2:
            yield mistake(site, argument(1, 0))


def _dims_exchanged(node: fx.Node, rank: int) -> None:
    tensor, gather_dim, shard_dim, axis = node.args
    node.args = (tensor, shard_dim, gather_dim, axis)


def gathered_in_another_order(program: sl.Program) -> Iterator[Mistake]:
    """The pieces of ranks lie one behind the other as they should, but begin with another rank's."""
    for site, node in calls(program, ALL_GATHER):
        size = int(str(node.args[1]))
        yield mistake(site, lambda node, rank, size=size: _turned(node, size))  # type: ignore[misc]


def _turned(node: fx.Node, size: int) -> None:
    (wait,) = node.users
    pieces = insert(wait, aten.reshape.default, [size, -1])
    turned = insert(pieces, aten.roll.default, [1], [0])
    insert(turned, aten.view_as.default)
    shaped = next(iter(turned.users))
    shaped.args = (turned, wait)


def wrong_offset(program: sl.Program) -> Iterator[Mistake]:
    """A slice that starts elsewhere."""
    for site, node in calls(program, aten.slice.Tensor):
        if len(node.args) == 4 and len(set(_starts(program, site))) > 1:
            yield mistake(site, _shifted_to_first)
            yield mistake(site, _one_earlier)


def _starts(program: sl.Program, site: Site) -> list[int]:
    found = [sites(program.for_rank(rank).graph).get(site) for rank in range(program.expansion.mesh.size)]
    return [int(str(node.args[2])) for node in found if node is not None and len(node.args) == 4]


def _shifted_to_first(node: fx.Node, rank: int) -> None:
    start, stop = int(str(node.args[2])), int(str(node.args[3]))
    node.args = (*node.args[:2], 0, stop - start)


def _one_earlier(node: fx.Node, rank: int) -> None:
    start, stop = int(str(node.args[2])), int(str(node.args[3]))
    if 0 < start < stop:
        node.args = (*node.args[:2], start - 1, stop - 1)


def stale(program: sl.Program) -> Iterator[Mistake]:
    """One reader takes the value as it was before its redistribution."""
    for site, node in sites(program.graph_module.graph).items():
        if "spmd_operand" in node.meta or node.target in (WAIT, *COLLECTIVES):
            continue
        for position, read in enumerate(node.all_input_nodes):
            if "spmd_operand" in read.meta and _start_of(read) is not None:
                yield mistake(site, _stale_at(position))


def _start_of(node: fx.Node) -> fx.Node | None:
    """The value at the start of a redistribution, seen from its end."""
    key = (node.meta["spmd_step"], node.meta["spmd_operand"])
    while (node.meta.get("spmd_step"), node.meta.get("spmd_operand")) == key:
        if not node.all_input_nodes:
            return None
        node = node.all_input_nodes[0]
    return node


def _stale_at(position: int) -> Callable[[fx.Node, int], None]:
    def change(node: fx.Node, rank: int) -> None:
        read = node.all_input_nodes[position]
        start = _start_of(read)
        assert start is not None
        node.replace_input_with(read, start)

    return change


# --- ranks ------------------------------------------------------------------------------------------


def swapped_ranks(program: sl.Program) -> Iterator[Mistake]:
    """Two ranks, each with the constants of the other."""
    size = program.expansion.mesh.size
    every = [sites(program.for_rank(rank).graph) for rank in range(size)]
    for site, node in every[0].items():
        numbers = [_constants(each[site]) if site in each else None for each in every]
        others = [rank for rank in range(1, size) if numbers[rank] not in (None, numbers[0])]
        if node.users and others:
            yield mistake(site, _exchanged(program, site, 0, others[0]))


def _constants(node: fx.Node) -> tuple[Any, ...]:
    return tuple(each for each in node.args if not isinstance(each, (fx.Node, list, tuple)))


def _exchanged(program: sl.Program, site: Site, one: int, other: int) -> Callable[[fx.Node, int], None]:
    def change(node: fx.Node, rank: int) -> None:
        if rank in (one, other):
            theirs = sites(program.for_rank(other if rank == one else one).graph)[site]
            constants = iter(_constants(theirs))
            node.args = tuple(
                each if isinstance(each, (fx.Node, list, tuple)) else next(constants) for each in node.args
            )

    return change


def swapped_shards(program: sl.Program) -> Iterator[Mistake]:
    """Each rank takes the shard of an input that is its neighbour's."""
    mesh = program.expansion.mesh
    placeholders = [node for node in program.graph_module.graph.nodes if node.op == "placeholder"]
    for position, (node, layout) in enumerate(zip(placeholders, program.input_layouts, strict=True)):
        readers = [user for user in node.users if "spmd_step" in user.meta]
        if not readers or not layout.global_shape:
            continue
        for split in layout.splits(0):
            if layout.global_shape[0] % split.axis_size == 0 and len(layout.splits(0)) == 1:
                change = _neighbours(position, split.axis, split.axis_size, mesh)
                yield Mistake(
                    readers[0].meta["spmd_step"],
                    f"input {node.target} over {split.axis}",
                    lambda program, change=change: program.rewrite(change),  # type: ignore[misc]
                )


def _neighbours(position: int, axis: str, size: int, mesh: sl.Mesh) -> Callable[[fx.GraphModule, int], None]:
    def change(module: fx.GraphModule, rank: int) -> None:
        graph = module.graph
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        own, readers = placeholders[position], list(placeholders[position].users)
        with graph.inserting_before(placeholders[-1].next):
            gathered = graph.call_function(ALL_GATHER, (own, size, axis))
            whole = graph.call_function(WAIT, (gathered,))
            pieces = graph.call_function(aten.chunk.default, (whole, size))
            neighbour = (mesh.coordinate(rank)[mesh.axis_index(axis)] + 1) % size
            theirs = graph.call_function(operator.getitem, (pieces, neighbour))
        for reader in readers:
            reader.replace_input_with(own, theirs)

    return change
