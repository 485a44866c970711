"""Runs the graph of a rank node by node, so that a failure, a death and a wait have the name of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import fx

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["NamedRun", "current_node", "node_told", "tell_places"]

_NODE = "_spmd_lab_node"
_place: Callable[[int], None] | None = None


def tell_places(teller: Callable[[int], None] | None) -> None:
    """Have every run in this process tell the position of the node that it starts, from 1, and 0 at its end."""
    global _place
    _place = teller


def node_told(name: str, step: str, lines: Mapping[str, str]) -> str:
    """``mm_1, of step mm, model.py:12: …``.

    Examples
    --------
    >>> node_told("mm_1", "mm", {"mm": "model.py:12: x @ w"}), node_told("x", "", {})
    ('mm_1, of step mm, model.py:12: x @ w', 'x')
    """
    line = lines.get(step, "")
    told = f"{name}, of step {step}" if step else name
    return f"{told}, {line}" if line else told


class NamedRun(fx.Interpreter):
    """The run of a graph, whose failures name their node, step and line.

    Parameters
    ----------
    graph : torch.fx.GraphModule
        The graph of this rank.
    lines : mapping of str to str
        The user's line of each step, where it is known.
    """

    def __init__(self, graph: fx.GraphModule, lines: Mapping[str, str]) -> None:
        super().__init__(graph)
        self.extra_traceback = False
        self._lines = lines
        self._positions = {node: position for position, node in enumerate(graph.graph.nodes, start=1)}

    def run_node(self, n: fx.Node) -> Any:
        """Run one node."""
        if _place is not None:
            _place(0 if n.op == "output" else self._positions[n])
        try:
            return super().run_node(n)
        except BaseException as error:
            step = n.meta.get("spmd_step", "")
            error.__dict__.setdefault(_NODE, (node_told(n.name, step, self._lines), step or None))
            raise


def current_node(error: BaseException) -> tuple[str | None, str | None]:
    """The node in which a run of a program failed, in words, and its step."""
    found: tuple[str | None, str | None] = error.__dict__.get(_NODE, (None, None))
    return found
