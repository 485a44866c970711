"""How operators read parameters that rest otherwise than they are used: gathered, and under which name."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from spmd_lab.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

    from spmd_lab.trace.values import TracedGraph

__all__ = ["Gather", "InUse"]


class Gather(NamedTuple):
    """A step that brings a value to its layout in use: its name, and that layout."""

    step: str
    need: Layout


class InUse:
    """The layouts in which parameters are used that rest otherwise.

    A parameter that nothing but casts to a smaller dtype read, as under autocast, is cast where it rests, and what
    comes out is gathered.

    Parameters
    ----------
    traced : TracedGraph
        The program.
    layouts : mapping of str to Layout
        By the names of inputs.
    in_each_phase : bool
        Whether what the forward gathers is gathered once more for the backward.
    """

    def __init__(self, traced: TracedGraph, layouts: Mapping[str, Layout], in_each_phase: bool) -> None:
        self.layouts = layouts
        self._traced = traced
        self._in_each_phase = in_each_phase
        self._gathered: dict[fx.Node, tuple[str, Layout]] = {}
        names = {found.node: found.name for found in traced.inputs if found.name in layouts}
        for node in traced.graph_module.graph.find_nodes(op="placeholder"):
            if node.name in names:
                name = names[node.name]
                holders = list(node.users) if self._only_cast(node) else [node]
                self._gathered.update({each: (name, _as_held(each, layouts[name])) for each in holders})
        readers = [(name, each) for node, (name, _) in self._gathered.items() for each in node.users]
        self._read_early = {name for name, each in readers if each.op != "output" and self._phase(each) == "forward"}

    def gather(self, value: fx.Node, reader: fx.Node) -> Gather | None:
        """The step whose result a node reads in the place of a value; None where it reads the value itself."""
        if value not in self._gathered or (reader in self._gathered and value.op == "placeholder"):
            return None
        name, need = self._gathered[value]
        again = self._in_each_phase and self._phase(reader) == "backward" and name in self._read_early
        return Gather(f"regather:{name}" if again else f"gather:{name}", need)

    def _only_cast(self, node: fx.Node) -> bool:
        """Whether a parameter is read in a smaller dtype alone, by one cast in each phase in which it is gathered."""
        phases = [self._phase(each) if self._in_each_phase else "" for each in node.users]
        return len(phases) == len(set(phases)) > 0 and all(_narrows(each, node) for each in node.users)

    def _phase(self, node: fx.Node) -> str:
        return self._traced.phase(node)


def _narrows(node: fx.Node, value: fx.Node) -> bool:
    """Whether a node casts a value to a smaller dtype, for operators to read."""
    if node.target is not torch.ops.aten._to_copy.default:  # noqa: SLF001 - the name of an operator
        return False
    kept = all(user.op == "call_function" for user in node.users)
    return kept and bool(node.meta["val"].dtype.itemsize < value.meta["val"].dtype.itemsize)


def _as_held(node: fx.Node, layout: Layout) -> Layout:
    return Layout(layout.global_shape, node.meta["val"].dtype, layout.mesh, layout.placements)
