"""A graph as a record of Python statements."""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from spmd_lab.collectives import axis_of, is_collective
from spmd_lab.notation import dtype_name
from spmd_lab.records.layouts import line_record
from spmd_lab.show.part_records import ArgumentRecord, CodeLine, CodeRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spmd_lab.mesh import Mesh

__all__ = [
    "code_record",
    "collective_axis",
    "expression",
    "global_comment",
    "identifier",
    "op_name",
    "statement",
]


def code_record(
    graph: fx.Graph,
    function: str,
    comment: Callable[[fx.Node], str],
    arguments: Sequence[tuple[str, str]],
    results: Sequence[tuple[str, str, str]],
    mesh: Mesh | None = None,
    does: Callable[[fx.Node], tuple[str, ...]] = lambda node: (),
) -> CodeRecord:
    """A graph as Python.

    Parameters
    ----------
    graph : fx.Graph
        The graph.
    function : str
        What to call it.
    comment : callable
        What to say about the value of a node.
    arguments : sequence of (title, role)
        The user's name and the role of each placeholder.
    results : sequence of (title, role, comment)
        Likewise of each output, with what to say about it.
    mesh : Mesh, optional
        Whose axes the collectives name.
    does : callable
        What to say above the statements that an operator becomes, line by line.
    """
    nodes = list(graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    takes_self = [ArgumentRecord("self", "", "the module that holds the constants", "")]
    described = [
        ArgumentRecord(node.name, title, role, comment(node))
        for node, (title, role) in zip(placeholders, arguments, strict=True)
    ]
    returned = next(node for node in reversed(nodes) if node.op == "output").args[0]
    flat = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    return CodeRecord(
        function=identifier(function),
        namespaces=_namespaces(nodes),
        arguments=tuple((takes_self if any(node.op == "get_attr" for node in nodes) else []) + described),
        lines=tuple(_line(node, comment, does, mesh) for node in nodes if node.op in ("call_function", "get_attr")),
        results=tuple(ArgumentRecord(expression(value), *said) for value, said in zip(flat, results, strict=True)),
    )


def _line(
    node: fx.Node, comment: Callable[[fx.Node], str], does: Callable[[fx.Node], tuple[str, ...]], mesh: Mesh | None
) -> CodeLine:
    axis = collective_axis(node)
    position = mesh.axes.index(axis) if mesh is not None and axis in mesh.axes else -1
    return CodeLine(
        statement=statement(node),
        comment=comment(node),
        line=line_record(node.meta.get("source")),
        phase="resolve" if resolves(node) else node.meta.get("phase", ""),
        axis=position,
        does=does(node),
    )


def resolves(node: fx.Node) -> bool:
    """Whether a node of a program belongs to an output that is resolved."""
    return str(node.meta.get("spmd_step", "")).startswith("resolve:")


def statement(node: fx.Node) -> str:
    """A node as Python."""
    return f"{node.name} = {_call(node)}"


def _call(node: fx.Node) -> str:
    if node.op == "get_attr":
        return f"self.{node.target}"
    if node.target is operator.getitem:
        value, index = node.args
        return f"{expression(value)}[{expression(index)}]"
    arguments = [expression(argument) for argument in node.args]
    arguments += [f"{name}={expression(value)}" for name, value in node.kwargs.items()]
    return f"{_callee(node.target)}({', '.join(arguments)})"


def _callee(target: Any) -> str:
    return op_name(target).removesuffix(".default")


def op_name(target: Any) -> str:
    """``aten.mm.default``; the qualified name of what is no operator of torch."""
    if hasattr(target, "namespace"):
        return str(target)
    return f"{target.__module__.removeprefix('_')}.{target.__qualname__}"


def _namespaces(nodes: Sequence[fx.Node]) -> tuple[str, ...]:
    """The operator namespaces that the statements use."""
    targets = [node.target for node in nodes if node.op == "call_function" and hasattr(node.target, "namespace")]
    return tuple(sorted({str(target).split(".")[0] for target in targets}))


def identifier(name: str) -> str:
    """A name as Python accepts it.

    Examples
    --------
    >>> identifier("<lambda>"), identifier("GPT")
    ('lambda_', 'GPT')
    """
    cleaned = re.sub(r"\W", "_", name).strip("_") or "program"
    return f"{cleaned}_" if cleaned != name else cleaned


def expression(value: Any) -> str:
    """An argument of a call as Python.

    Examples
    --------
    >>> expression([1, float("inf"), torch.float32, None, torch.device("cpu")])
    "[1, inf, torch.float32, None, device('cpu')]"
    """
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, tuple):
        return f"({', '.join(expression(item) for item in value)}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(expression(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {expression(item)}" for key, item in value.items()) + "}"
    if isinstance(value, slice):
        return f"slice({expression(value.start)}, {expression(value.stop)}, {expression(value.step)})"
    if isinstance(value, torch.device):
        return f"device({str(value)!r})"
    return repr(value)


def collective_axis(node: fx.Node) -> str:
    """The axis over which a node communicates; empty where it does not."""
    return axis_of(node) if is_collective(node) else ""


def global_comment(node: fx.Node) -> str:
    """``f32[16, 64]``: what a node of the traced graph holds; a tuple is told item by item, where it is read."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return f"{dtype_name(value.dtype)}[{', '.join(str(size) for size in value.shape)}]"
    return ""
