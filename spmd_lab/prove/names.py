"""The values of an expanded program, by the names that its steps use for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spmd_lab.expand import Expansion
    from spmd_lab.layout import Layout

__all__ = ["Names"]


class Names:
    """The values of a traced program by the names that steps use for them."""

    def __init__(self, expansion: Expansion) -> None:
        traced = expansion.traced
        self.values = expansion.layouts
        self.inputs = dict(zip((each.name for each in traced.inputs), expansion.input_layouts, strict=True))
        self.shown = {each.node: each.name for each in traced.inputs}
        self.resolved = {
            f"resolve:{output.name}": layout
            for output, layout in zip(traced.outputs, expansion.output_layouts, strict=True)
            if layout is not None
        }
        nodes = traced.graph_module.graph.nodes
        self.constants = {str(node.target): node.name for node in nodes if node.op == "get_attr"}

    def layouts(self, name: str) -> list[Layout]:
        """The layouts of the values of this name: an input and a node may share it."""
        found = [self.inputs.get(name), self.values.get(name), self.resolved.get(name)]
        return [layout for layout in found if layout is not None]
