"""Arguments to try a rule on, and the program that is one operator on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from spmd_lab.errors import ArgumentError, RuleError, expect
from spmd_lab.torch_internals.operators import argument_names, operator_name
from spmd_lab.trace import TracedGraph, trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spmd_lab.torch_internals.operators import OpOverload

__all__ = ["Example", "examples_of", "traced_alone"]


class Example(NamedTuple):
    """Arguments to call an operator with."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def examples_of(example: Any) -> list[Example]:
    """Each example's arguments: a tuple is one, a list has several, a tensor is the only argument."""
    hint = "a tuple of arguments, as example=(torch.randn(5, 4),); or a list of such tuples"
    if isinstance(example, torch.Tensor):
        example = (example,)
    expect(example, (list, tuple), "example", hint)
    several = example if isinstance(example, list) else [example]
    found = []
    for each in several:
        expect(each, tuple, "example", hint)
        *args, last = each or (None,)
        found.append(Example(tuple(args), last) if isinstance(last, dict) else Example(tuple(each), {}))
    if not found:
        raise ArgumentError("example is empty", argument="example", hint=hint)
    return found


def traced_alone(op: OpOverload, example: Example) -> TracedGraph:
    """The program that is the one operator on an example."""

    def program(**arguments: Any) -> Any:
        return op(**arguments)

    program.__name__ = operator_name(op)
    names = argument_names(op)
    if len(example.args) > len(names):
        raise RuleError(
            f"{operator_name(op)} takes {len(names)} arguments, the example has {len(example.args)}",
            argument="example",
            hint=f"in order: {', '.join(names)}",
        )
    arguments = {**dict(zip(names, example.args, strict=False)), **example.kwargs}
    traced = trace(program, kwargs={name: _by_itself(value) for name, value in arguments.items()}, backward=False)
    made_of = [str(node.target) for node in traced.op_nodes]
    name = operator_name(op)
    if made_of != [name]:
        raise RuleError(
            f"{name} is not one operator of a traced program: it becomes {', '.join(made_of) or 'nothing'}",
            argument=f"op={name}",
            hint="a rule for each of those",
        )
    if not traced.inputs:
        raise RuleError("there is no tensor in the example", argument="example", hint="example=(torch.randn(5, 4),)")
    for found, value in zip(traced.inputs, traced.values, strict=True):
        if value.is_floating_point() and value.numel() > 1 and bool((value == value.flatten()[0]).all()):
            raise RuleError(
                f"all elements of {found.name!r} are equal, so that an exchange of them would go unseen",
                argument="example",
                hint=f"torch.randn({', '.join(map(str, value.shape))})",
            )
    return traced


def _by_itself(value: Any) -> Any:
    """The same arguments; a tensor that stands twice becomes two, and none has a gradient."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, (list, tuple)):
        return type(value)(_by_itself(each) for each in value)
    return value
