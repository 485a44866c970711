"""What can be wrong with a reduction, and with the axis of any collective."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.prove.faults.places import (
    ALL_REDUCE,
    COLLECTIVES,
    REDUCE_SCATTER,
    WAIT,
    argument,
    aten,
    bypass,
    calls,
    insert,
    mistake,
    sites,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import fx

    import spmd_lab as sl
    from tests.prove.faults.places import Mistake


def dropped(program: sl.Program) -> Iterator[Mistake]:
    """What is pending stays so."""
    for site, _ in calls(program, ALL_REDUCE):
        yield mistake(site, bypass)


def doubled(program: sl.Program) -> Iterator[Mistake]:
    """The sum once more, of its own result: a gradient that is too large by the size of the axis."""
    for site, node in calls(program, ALL_REDUCE):
        if node.args[1] == "sum":
            yield mistake(site, _again)


def _again(node: fx.Node, rank: int) -> None:
    (wait,) = node.users
    second = insert(wait, node.target, *node.args[1:])
    insert(second, WAIT)


def reduced_early(program: sl.Program) -> Iterator[Mistake]:
    """A value that is to stay pending is reduced where it is made, and then again as it always was."""
    for site, node in sites(program.graph_module.graph).items():
        layout = program.expansion.layouts.get(str(node.meta.get("spmd_value")))
        if layout is not None and node.users and node.target is not WAIT:
            for axis, kind in layout.pending.items():
                if kind == "sum":
                    yield mistake(site, _reduced(axis))


def _reduced(axis: str) -> Callable[[fx.Node, int], None]:
    def change(node: fx.Node, rank: int) -> None:
        insert(insert(node, ALL_REDUCE, "sum", axis), WAIT)

    return change


def wrong_kind(program: sl.Program) -> Iterator[Mistake]:
    """An average for a sum, a minimum for a maximum."""
    for site, node in calls(program, ALL_REDUCE, REDUCE_SCATTER):
        for kind in ("sum", "avg", "max", "min"):
            if kind != node.args[1]:
                yield mistake(site, argument(1, kind))


def wrong_axis(program: sl.Program) -> Iterator[Mistake]:
    """The ranks of another axis meet."""
    for site, node in calls(program, *COLLECTIVES):
        position = len(node.args) - 1
        for axis in program.expansion.mesh.axes:
            if axis != node.args[position]:
                yield mistake(site, argument(position, axis))


def early_relu(program: sl.Program) -> Iterator[Mistake]:
    """A ReLU on what is not added up yet."""
    for site, _ in calls(program, ALL_REDUCE, REDUCE_SCATTER):
        yield mistake(site, _rectified)


def _rectified(node: fx.Node, rank: int) -> None:
    with node.graph.inserting_before(node):
        node.update_arg(0, node.graph.call_function(aten.relu.default, (node.args[0],)))  # type: ignore[arg-type]
