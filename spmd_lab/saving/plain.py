"""The graph of a rank as plain data: names, numbers and lists, from which nothing can be run but operators of torch."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from spmd_lab.errors import SavingError
from spmd_lab.torch_internals.functional_ops import functional_form_called
from spmd_lab.torch_internals.operators import is_operator, operator_name

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PlainGraph", "graph_from_plain", "graph_to_plain"]

PlainGraph = dict[str, Any]
"""``{"nodes": [{"name", "op", "target", "args", "kwargs", "step"}, …]}``; values as `_plain` writes them."""

_FUNCTIONS = {"getitem": operator.getitem}
_KINDS: dict[str, type] = {
    "dtype": torch.dtype,
    "device": torch.device,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}


def graph_to_plain(graph_module: fx.GraphModule) -> PlainGraph:
    """Write the graph of a rank as plain data; its constants are left to the caller.

    Raises
    ------
    SavingError
        If it calls something that is no operator, or holds a value that cannot be written.
    """
    return {
        "nodes": [
            {
                "name": node.name,
                "op": node.op,
                "target": _target(node),
                "args": _plain(node, node.args),
                "kwargs": _plain(node, dict(node.kwargs)),
                "step": node.meta.get("spmd_step", ""),
            }
            for node in graph_module.graph.nodes
        ]
    }


def graph_from_plain(plain: PlainGraph, constants: Mapping[str, torch.Tensor], name: str) -> fx.GraphModule:
    """Build the graph of a rank from plain data.

    Raises
    ------
    SavingError
        If it names an operator that this torch does not have.
    """
    graph = fx.Graph()
    made: dict[str, fx.Node] = {}
    for each in plain["nodes"]:
        args, kwargs = _unplain(each["args"], made), _unplain(each["kwargs"], made)
        target = _function(each["target"]) if each["op"] == "call_function" else each["target"]
        node = graph.create_node(each["op"], target, args, kwargs, each["name"])
        node.meta["spmd_step"] = each["step"]
        made[each["name"]] = node
    used = {node.target for node in graph.nodes if node.op == "get_attr"}
    return fx.GraphModule({key: value for key, value in constants.items() if key in used}, graph, name)


def _target(node: fx.Node) -> str:
    if node.op != "call_function":
        return str(node.target)
    if is_operator(node.target):
        return operator_name(node.target)
    for name, function in _FUNCTIONS.items():
        if node.target is function:
            return name
    raise SavingError(f"{node.target} is no operator of torch and cannot be saved", node=node.name)


def _function(name: str) -> Any:
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.rpartition(".")
    try:
        found = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    except (AttributeError, RuntimeError):
        found = functional_form_called(namespace, packet)
    if not is_operator(found):
        raise SavingError(
            f"the program calls {name}, which torch {torch.__version__} does not have here",
            hint="import the library that registers the operator before loading",
        )
    return found


def _plain(node: fx.Node, value: Any) -> Any:
    """A value of numbers, text, lists and dicts; what is neither is a dict of one key that says what it is."""
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return value
    if isinstance(value, (list, tuple)):
        items = [_plain(node, each) for each in value]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, dict):
        return {"dict": {key: _plain(node, each) for key, each in value.items()}}
    for kind, found in _KINDS.items():
        if isinstance(value, found):
            return {kind: str(value).removeprefix("torch.")}
    raise SavingError(f"{node.name} holds a {type(value).__name__}, which cannot be saved: {value!r}", node=node.name)


def _unplain(value: Any, made: Mapping[str, fx.Node]) -> Any:
    if isinstance(value, list):
        return [_unplain(each, made) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "node":
        return made[held]
    if kind == "tuple":
        return tuple(_unplain(each, made) for each in held)
    if kind == "dict":
        return {key: _unplain(each, made) for key, each in held.items()}
    if kind == "device":
        return torch.device(held)
    found = getattr(torch, held, None)
    if kind not in _KINDS or not isinstance(found, _KINDS[kind]):
        raise SavingError(f"{held!r} is no {kind} of torch {torch.__version__}")
    return found
