"""Outputs: where each of them shall lie, and the steps that bring it there."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import fx

from spmd_lab.errors import ArgumentError, ExpansionError
from spmd_lab.expand.steps import make_step
from spmd_lab.expand.subgraph import moving

if TYPE_CHECKING:
    from spmd_lab.expand.propagate import Propagated
    from spmd_lab.expand.subgraph import Subgraph
    from spmd_lab.expand.values import Step
    from spmd_lab.layout import Layout
    from spmd_lab.trace.values import TracedGraph, TracedOutput

__all__ = ["OutputPolicy", "resolve_outputs", "tangent_layout"]


class OutputPolicy(NamedTuple):
    """What the user asked of outputs.

    Parameters
    ----------
    pending : str
        "resolve" or "keep".
    exact : dict
        The layouts asked for by name.
    inputs : dict
        The layouts of parameters and buffers, which their gradients follow.
    written : dict
        The layouts of all inputs, which their new values follow: what is written into a tensor does not move it.
    used : dict
        By node, the layouts in use of inputs that rest otherwise: one that is returned as it came lies as it is used.
    """

    pending: str
    exact: dict[str, Layout]
    inputs: dict[str, Layout]
    written: dict[str, Layout]
    used: dict[str, Layout]

    def target(self, output: TracedOutput, has: Layout) -> Layout:
        """Where an output shall lie, given how it comes out."""
        if output.name in self.exact:
            return self.exact[output.name]
        if self.pending == "keep":
            return has
        if output.role == "new value" and output.of in self.written:
            return self.written[output.of].settled()
        if output.of in self.inputs:
            return self.inputs[output.of]
        return has.settled()


def tangent_layout(traced: TracedGraph, policy: OutputPolicy, node: fx.Node, layouts: dict[str, Layout]) -> Layout:
    """The layout of a tangent: that of its output, once that is resolved; Replicate for a pending sum that is kept.

    Raises
    ------
    ExpansionError
        If its output is kept pending in another way than as a sum.
    """
    name = next(found.name for found in traced.inputs if found.node == node.name)
    answers = dict(zip((found.name for found in traced.outputs), output_nodes(traced), strict=True))
    output = next(found for found in traced.outputs if f"tangent({found.name})" == name)
    produced = answers[output.name]
    assert isinstance(produced, fx.Node)
    target = policy.target(output, policy.used.get(produced.name, layouts[produced.name]))
    if any(kind != "sum" for kind in target.pending.values()):
        raise ExpansionError(
            f"{output.name} is kept pending, and not as a sum: its gradient is not defined piece by piece",
            node=produced.name,
            source=traced.source(produced),
            layouts={output.name: target},
            hint=f'pending="resolve", or outputs={{{output.name!r}: ...}}',
        )
    return target.settled()


def output_nodes(traced: TracedGraph) -> tuple[object, ...]:
    """What the traced graph returns, flat: nodes, None, or plain numbers."""
    (returned,) = next(iter(reversed(traced.graph_module.graph.nodes))).args
    assert isinstance(returned, (tuple, list))
    return tuple(returned)


def resolve_outputs(
    traced: TracedGraph, policy: OutputPolicy, propagated: Propagated
) -> tuple[list[Step], dict[str, Subgraph], tuple[Layout | None, ...]]:
    """The steps that bring outputs to where they shall lie, their subgraphs, and the layout of every output."""
    steps: list[Step] = []
    subgraphs: dict[str, Subgraph] = {}
    final: list[Layout | None] = []
    for output, node in zip(traced.outputs, output_nodes(traced), strict=True):
        if not isinstance(node, fx.Node) or node.name not in propagated.layouts:
            _refuse_exact(policy, output)
            final.append(None)
            continue
        has = propagated.layouts[node.name]
        target = policy.target(output, policy.used.get(node.name, has))
        final.append(target)
        if target == has:
            continue
        name = f"resolve:{output.name}"
        subgraphs[name] = moving(has, target)
        phase = "backward" if output.role == "gradient" else traced.phase(node)
        steps.append(make_step(name, "resolve", traced.source(node), phase, (node.name,), subgraphs[name]))
    return steps, subgraphs, tuple(final)


def _refuse_exact(policy: OutputPolicy, output: TracedOutput) -> None:
    if output.name in policy.exact:
        raise ArgumentError(
            f"output {output.name!r} is no tensor", argument=f"outputs={output.name!r}", hint="leave it out"
        )
