"""The export of a joint graph: forward and backward of a module, in ATen operators.

What exports is imported when it is first used: it brings the whole compiler along.
"""

from __future__ import annotations

import inspect
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from spmd_lab.torch_internals.effects import drop_tokens
from spmd_lab.torch_internals.functional_ops import call_functional_forms, whole_arguments_written
from spmd_lab.torch_internals.whole_imports import whole_imports

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import fx, nn

__all__ = ["ExportedValue", "JointGraph", "export_joint", "load_exporter", "said_to_be_traced"]

ValueKind = Literal["input", "tangent", "output", "gradient", "new value"]


@dataclass(frozen=True)
class ExportedValue:
    """What one placeholder or one output of the exported graph is.

    Parameters
    ----------
    kind : str
        "input", "tangent" (of an output or of a new value), "output", "gradient" or "new value".
    index : int
        The position of the argument, or of the returned value, that it belongs to.
    of : str
        For a tangent: whether ``index`` counts "output" or "new value".
    """

    kind: ValueKind
    index: int
    of: Literal["", "output", "new value"] = ""


@dataclass(frozen=True)
class JointGraph:
    """An exported graph, its placeholders and outputs told apart.

    Parameters
    ----------
    graph_module : torch.fx.GraphModule
        As exported.
    placeholders : tuple of (Node, ExportedValue)
        In the order of the graph.
    outputs : tuple of (Node or constant, ExportedValue)
        Likewise; gradients that do not exist are None.
    """

    graph_module: fx.GraphModule
    placeholders: tuple[tuple[fx.Node, ExportedValue], ...]
    outputs: tuple[tuple[Any, ExportedValue], ...]


def load_exporter() -> None:
    """Import what exports, which takes a second or two, if it is not there."""
    with whole_imports():
        import torch._dynamo
        import torch._functorch.aot_autograd  # noqa: F401


def export_joint(module: nn.Module, arguments: Sequence[torch.Tensor]) -> JointGraph:
    """Export a module without parameters, called with flat fake tensors and returning a tuple of tensors.

    Raises
    ------
    NotImplementedError
        If the graph has an input or output of a kind that is not covered here.
    """
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    options: dict[str, Any] = {"_disable_torch_fn_metadata_mode": True}
    known = inspect.signature(aot_export_joint_with_descriptors).parameters
    with ExitStack() as stack, whole_arguments_written(), _portable_operators():
        joint = aot_export_joint_with_descriptors(
            stack, module, tuple(arguments), {}, **{name: value for name, value in options.items() if name in known}
        )
        graph_module: fx.GraphModule = joint.graph_module
    drop_tokens(graph_module)
    call_functional_forms(graph_module)
    placeholders, outputs = [], []
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            placeholders.append((node, _input_value(node.meta["desc"])))
        elif node.op == "output":
            for value, description in zip(node.args[0], node.meta["desc"], strict=True):
                if description is not None:
                    outputs.append((value, _output_value(description)))
    return JointGraph(graph_module, tuple(placeholders), tuple(outputs))


@contextmanager
def _portable_operators() -> Iterator[None]:
    """Keep recurrent layers from becoming operators of oneDNN, whose backward runs inside autograd alone."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextmanager
def said_to_be_traced() -> Iterator[None]:
    """Let ``torch.compiler.is_compiling()`` be true, so that libraries choose their path without branches on data."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def _input_value(description: object) -> ExportedValue:
    from torch._functorch._aot_autograd.descriptors import PlainAOTInput, TangentAOTInput

    if isinstance(description, PlainAOTInput):
        return ExportedValue("input", description.idx)
    if isinstance(description, TangentAOTInput):
        output = _output_value(description.output)
        assert output.kind in ("output", "new value")
        return ExportedValue("tangent", output.index, output.kind)
    raise NotImplementedError(f"an input of kind {type(description).__name__}")


def _output_value(description: object) -> ExportedValue:
    from torch._functorch._aot_autograd.descriptors import GradAOTOutput, InputMutationAOTOutput, PlainAOTOutput

    if isinstance(description, PlainAOTOutput):
        return ExportedValue("output", description.idx)
    if isinstance(description, GradAOTOutput):
        return ExportedValue("gradient", _input_value(description.grad_of).index)
    if isinstance(description, InputMutationAOTOutput):
        return ExportedValue("new value", _input_value(description.mutated_input).index)
    raise NotImplementedError(f"an output of kind {type(description).__name__}")
