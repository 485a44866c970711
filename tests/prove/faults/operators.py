"""What can be wrong with the local program of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.prove.faults.places import argument, aten, bypass, calls, insert, mistake, sites

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import fx

    import spmd_lab as sl
    from tests.prove.faults.places import Mistake


def wrong_number(program: sl.Program) -> Iterator[Mistake]:
    """A number that only the program of ranks has: a share of a bias, a count, the start of a vocabulary."""
    for site, node in calls(program, aten.div.Tensor, aten.sub.Tensor, aten.mul.Tensor):
        number = node.args[1] if len(node.args) > 1 else None
        if "spmd_value" not in node.meta and isinstance(number, (int, float)) and number != 0:
            yield mistake(site, argument(1, number + 1))
            if node.target is not aten.mul.Tensor:
                yield mistake(site, bypass)


def unmasked(program: sl.Program) -> Iterator[Mistake]:
    """Rows of a vocabulary that another rank holds are read all the same."""
    for site, _ in calls(program, aten.masked_fill.Scalar):
        yield mistake(site, _without_mask)


def _without_mask(node: fx.Node, rank: int) -> None:
    bypass(node, rank)
    if "spmd_value" in node.meta:
        node.args[0].meta["spmd_value"] = node.meta.pop("spmd_value")  # type: ignore[union-attr]


def swapped_operands(program: sl.Program) -> Iterator[Mistake]:
    """A difference or a quotient the wrong way round."""
    for site, node in calls(program, aten.sub.Tensor, aten.div.Tensor, aten.threshold_backward.default):
        if len(node.all_input_nodes) == 2 and "spmd_value" in node.meta:
            yield mistake(site, _exchanged)


def _exchanged(node: fx.Node, rank: int) -> None:
    first, second, *rest = node.args
    node.args = (second, first, *rest)


def scaled(program: sl.Program) -> Iterator[Mistake]:
    """A value that comes out twice as large."""
    layouts = program.expansion.layouts
    for site, node in sites(program.graph_module.graph).items():
        layout = layouts.get(str(node.meta.get("spmd_value")))
        if layout is not None and layout.dtype.is_floating_point:
            yield mistake(site, _doubled)


def _doubled(node: fx.Node, rank: int) -> None:
    insert(node, aten.mul.Tensor, 2.0)
