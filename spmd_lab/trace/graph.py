"""From the exported joint graph to the flat graph of a traced program."""

from __future__ import annotations

import keyword
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from spmd_lab.torch_internals.export import ExportedValue, JointGraph
from spmd_lab.torch_internals.tracebacks import is_backward

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["CLOSING", "GraphCopy", "sanitised"]

CLOSING = "spmd_lab_closing"
"""Marks, in ``meta["custom"]``, the nodes that keep outputs apart while the program is exported."""

_AS_ORDINARY = {torch.ops.aten._efficientzerotensor.default: torch.ops.aten.zeros.default}  # noqa: SLF001
"""Tensors without memory, as forward-mode derivatives make them, become ordinary ones."""

_IDENTITIES = (torch.ops.aten.clone.default, torch.ops.aten.detach.default, torch.ops.aten.alias.default)


def sanitised(name: str) -> str:
    """A name as Python allows it.

    Examples
    --------
    >>> sanitised("blocks.0.q.weight"), sanitised("xs[0]"), sanitised("tangent(out[1])")
    ('blocks_0_q_weight', 'xs_0', 'tangent_out_1')
    """
    text = re.sub(r"\W+", "_", name).strip("_") or "input"
    return f"_{text}" if text[0].isdigit() or keyword.iskeyword(text) or text == "self" else text


class GraphCopy:
    """A flat graph in the making, copied from an exported one.

    Parameters
    ----------
    joint : JointGraph
        The exported graph.
    constants : mapping of ExportedValue to ExportedValue
        Tangents that are known: 1 for the tangent of a loss, 0 for that of a new value. Each is computed from the
        output that it belongs to.
    """

    def __init__(self, joint: JointGraph, constants: Mapping[ExportedValue, float]) -> None:
        self.graph = fx.Graph()
        self.origin: dict[fx.Node, fx.Node] = {}
        self._joint = joint
        self.constants = constants
        self._old_outputs = {value: node for node, value in joint.outputs}
        self._old_inputs = {value: node for node, value in joint.placeholders}
        self._made: dict[fx.Node, Any] = {}

    def placeholder(self, value: ExportedValue, name: str) -> fx.Node:
        """Add the placeholder of an input or a tangent."""
        old = self._old_inputs[value]
        new = self.graph.placeholder(sanitised(name))
        new.target = new.name  # what was asked for, others may be called too
        new.meta["val"] = old.meta["val"]
        self._made[old] = new
        return new

    def is_used(self, value: ExportedValue) -> bool:
        """Whether the exported graph does anything with an input."""
        old = self._old_inputs.get(value)
        mutated = ExportedValue("new value", value.index) in self._old_outputs
        return old is not None and (bool(old.users) or mutated)

    def copy_operators(self) -> None:
        """Copy every operator; then constant tangents stand where the backward begins."""
        started = False
        for node in self._joint.graph_module.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            if CLOSING in node.meta.get("custom", ()) and node.target in _IDENTITIES:
                self._made[node] = self._new(node.args[0])
                continue
            if not started and is_backward(node):
                started = True
                self._add_constants()
            new = self.graph.node_copy(node, self._new)
            new.target = _AS_ORDINARY.get(node.target, node.target)
            self._made[node] = new
            self.origin[new] = node
        if not started:
            self._add_constants()

    def _add_constants(self) -> None:
        for tangent, number in self.constants.items():
            if tangent not in self._old_inputs:
                continue
            output = self.output(ExportedValue(tangent.of or "output", tangent.index))
            like = torch.ops.aten.ones_like.default if number else torch.ops.aten.zeros_like.default
            new = self.graph.call_function(like, (output,), {"memory_format": torch.preserve_format})
            new.meta["val"] = self._old_inputs[tangent].meta["val"]
            self._made[self._old_inputs[tangent]] = new

    def _new(self, value: Any) -> Any:
        return self._made[value] if isinstance(value, fx.Node) else value

    def output(self, value: ExportedValue) -> Any:
        """The node or constant of an output; None where the program has none."""
        return self._new(self._old_outputs.get(value))

    def finish(self, outputs: Iterable[Any], name: str) -> fx.GraphModule:
        """Close the graph with its outputs."""
        node = self.graph.output(tuple(outputs))
        node.meta["val"] = tuple(each.meta["val"] if isinstance(each, fx.Node) else each for each in node.args[0])
        module = fx.GraphModule(self._joint.graph_module, self.graph, class_name=name)
        self.graph.lint()
        return module
