"""Follows the trace on the program's own values: what each traced operator makes of what the ranks really have.

Each value is judged by what its own operator should have made of its operands as the ranks hold them. So errors do not
add up along the way, a wrong step is found at that step alone, and the steps after it are judged on their own merits.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from spmd_lab.local_graph import whatever_the_strides
from spmd_lab.prove.judge import judge
from spmd_lab.prove.made import Made, value_of
from spmd_lab.prove.pieces import Whole, assemble, is_inexact, replicas
from spmd_lab.prove.tally import Tally
from spmd_lab.prove.tolerance import Shaker, noise_of
from spmd_lab.streams import Stream, common_draw
from spmd_lab.torch_internals.operators import is_operator, is_random, is_view
from spmd_lab.trace.uses import last_uses, producer, reads

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from spmd_lab.expand import Expansion
    from spmd_lab.layout import Layout
    from spmd_lab.prove.judge import Verdict

__all__ = ["Follower"]


class Follower:
    """Judges what the ranks report, as an observer of their simulation.

    Parameters
    ----------
    expansion : Expansion
        What the program was made from.
    graph : torch.fx.Graph
        The graph of a rank: it says which values there will be.
    inputs : sequence of Whole
        The inputs as the ranks hold them, put together.
    ranks : collection of int
        The ranks to report on.
    seed : int
        Of how operands are shaken.

    Attributes
    ----------
    tally : Tally
        The verdicts.
    taken : int
        How many values shards have drawn for themselves.
    scales : dict of str to torch.Tensor
        Where ranks hold pieces of a value, the magnitude of these.
    """

    def __init__(
        self, expansion: Expansion, graph: fx.Graph, inputs: Sequence[Whole], ranks: Collection[int], seed: int
    ) -> None:
        traced = expansion.traced
        self.tally = Tally()
        self.taken = 0
        self.scales: dict[str, torch.Tensor] = {}
        self._expansion = expansion
        self._ranks = ranks
        self._shaker = Shaker(seed)
        self._stream = Stream()
        self._steps = {step.name: step for step in expansion.steps}
        self._nodes = tuple(traced.graph_module.graph.nodes)
        self._reads = {node.name: reads(node) for node in self._nodes}
        self._gathers = {node.name: self._gathered_for(node) for node in self._nodes}
        self._position = 0
        self._frees = last_uses(self._nodes, lambda node: self._gathers[node.name].values())
        self._held: dict[fx.Node | str, Any] = {}
        self._moved: dict[tuple[str, str], Whole] = {}
        self._made: dict[fx.Node | str, Made] = {}
        self._arrived: dict[str, Sequence[Any]] = {}
        self._expected = {
            node.meta["spmd_value"] for node in graph.nodes if "spmd_value" in node.meta and node.op != "placeholder"
        }
        self._inputs = dict(zip((each.node for each in traced.inputs), inputs, strict=True))
        returned: Any = self._nodes[-1].args[0]
        self._outputs = [
            (f"resolve:{output.name}", node, layout)
            for output, node, layout in zip(traced.outputs, returned, expansion.output_layouts, strict=True)
        ]
        self._returned = {name: (node, layout) for name, node, layout in self._outputs if layout is not None}

    # --- as an observer ---

    def value(self, name: str, tensors: Sequence[Any]) -> None:
        """Judge a value of the traced program once its turn comes, or an output that was resolved."""
        if name in self._returned and name in self._steps:
            self._advance()  # an output may be an input as it came
            self._judge_resolved(name, tensors)
            return
        self._arrived[name] = tensors
        self._advance()

    def operand(self, step: str, index: int, before: Sequence[Any], after: Sequence[Any]) -> None:
        """Judge a redistribution by what it was given: nothing but rounding may be lost on the way."""
        known = self._steps.get(step)
        if known is None or known.only_moves:
            return
        operand = known.operands[index]
        if any(tuple(tensor.shape) != operand.have.local_shape(rank) for rank, tensor in enumerate(before)):
            return  # what it was given is already wrong, and reported
        whole = assemble(operand.have, before, replicas(operand.have)[0])
        verdict = self._judge(step, operand.name, operand.need, whole, after)
        moved = _usable(verdict)
        if moved is not None:
            self._moved[step, self._reads[step][index].name] = moved

    def finish(self, graphs: Collection[fx.Graph], results: Sequence[Sequence[Any]]) -> None:
        """Follow what is left of the trace, values that no rank reported; judge outputs that carry no name.

        Parameters
        ----------
        graphs : collection of torch.fx.Graph
            What the ranks have run.
        results : sequence of sequence
            What each rank returns.
        """
        self._expected.clear()
        self._advance()
        unnamed = [_unnamed(graph) for graph in graphs]
        for position, (name, node, layout) in enumerate(self._outputs):
            if layout is not None and any(position in each for each in unnamed):
                step = name if name in self._steps else producer(node).name
                self._judge(step, name, layout, self._held[node], [each[position] for each in results])

    # --- following ---

    def _advance(self) -> None:
        while (node := self._nodes[self._position]).op != "output":
            gathered = [name for name in self._gathers[node.name].values() if name not in self._held]
            if any(name in self._expected and name not in self._arrived for name in (*gathered, node.name)):
                return
            self._position += 1
            for read, name in self._gathers[node.name].items():
                if name not in self._held:
                    self._held[name] = self._gather(name, self._held[read])
            self._follow(node)
            for done in self._frees.get(node, ()):
                self._held.pop(done, None)
                self._made.pop(done, None)

    def _follow(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self._held[node] = self._inputs[node.name]
        elif node.op == "get_attr":
            self._held[node] = Whole(getattr(self._expansion.traced.graph_module, str(node.target)))
        elif node.op == "call_function":
            expected, samples = self._make(node)
            if self._draws_locally(node):
                self._held[node] = self._taken(node, expected)
                return
            held = self._unreported(node, expected) if isinstance(expected, torch.Tensor) else expected
            layout = self._expansion.layouts.get(node.name)
            if node.name in self._arrived and isinstance(expected, torch.Tensor) and layout is not None:
                verdict = self._judge_made(node, layout, expected, samples)
                held = _usable(verdict) or held
            self._held[node] = held

    def _gathered_for(self, node: fx.Node) -> dict[fx.Node, str]:
        """The inputs that a node reads as a step gathers them, with the name of that step."""
        own = self._steps.get(node.name)
        named = [] if own is None else zip(self._reads[node.name], (each.name for each in own.operands), strict=True)
        return {read: name for read, name in named if name in self._steps and self._steps[name].op == "gather"}

    def _gather(self, name: str, whole: Whole) -> Whole:
        """What ranks hold of an input once it is brought to its layout in use."""
        if name not in self._arrived:
            return whole
        layout = self._steps[name].operands[0].need
        return _usable(self._judge(name, name, layout, whole, self._arrived.pop(name))) or whole

    def _unreported(self, node: fx.Node, expected: torch.Tensor) -> Whole:
        """What no rank says to hold: a view of what was reduced is as inexact as that."""
        held = self._held.get(node.all_input_nodes[0]) if len(node.all_input_nodes) == 1 else None
        moves = is_operator(node.target) and is_view(node.target)
        if not moves or not isinstance(held, Whole) or held.scale is None:
            return Whole(expected)
        scale = torch.complex(held.scale, held.scale) if held.value.is_complex() else held.scale
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda _: scale)
        view: Any = whatever_the_strides(node.target)  # type: ignore[arg-type]
        seen: torch.Tensor = view(*args, **kwargs)
        return Whole(expected, seen.abs() if seen.shape == expected.shape else None)

    def _draws_locally(self, node: fx.Node) -> bool:
        step = self._steps.get(producer(node).name)
        return step is not None and step.draws_locally

    def _taken(self, node: fx.Node, expected: Any) -> Any:
        """What ranks have drawn for themselves, put together; that copies agree is all that can be judged."""
        layout = self._expansion.layouts.get(node.name)
        if node.name not in self._arrived or not isinstance(expected, torch.Tensor) or layout is None:
            return Whole(expected) if isinstance(expected, torch.Tensor) else expected
        tensors = self._arrived.pop(node.name)
        if any(tuple(tensor.shape) != layout.local_shape(rank) for rank, tensor in enumerate(tensors)):
            drawn = Whole(expected)
        else:
            drawn = assemble(layout, tensors, replicas(layout)[0])
        self._judge(producer(node).name, node.name, layout, drawn, tensors)
        self.taken += 1
        return drawn

    def _make(self, node: fx.Node) -> tuple[Any, Any]:
        """What a node should hold, and how to ask for the same from shaken operands."""
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node) and node.args[0] in self._made:
            made, index = self._made[node.args[0]], node.args[1]
            return made.value[index], lambda: [sample[index] for sample in made.samples]
        names = self._gathers[node.name]
        operands = {
            read: self._moved.pop((node.name, read.name), self._held[names.get(read, read)])
            for read in node.all_input_nodes
        }
        draws = is_operator(node.target) and is_random(node.target)
        stream = self._stream.again() if draws and self._draws_locally(node) else self._stream
        made = Made(node, operands, self._shaker, stream if draws else None)
        if stream is not self._stream:
            with self._stream:
                common_draw()
        if isinstance(made.value, (tuple, list)):
            self._made[node] = made
        return made.value, lambda: made.samples

    # --- judging ---

    def _judge_made(self, node: fx.Node, layout: Layout, expected: torch.Tensor, samples: Any) -> Verdict:
        verdict = judge(
            expected,
            layout,
            self._arrived.pop(node.name),
            self._ranks,
            lambda scale: noise_of(expected, samples(), scale),
        )
        if verdict.whole is not None and verdict.whole.scale is not None:
            self.scales[node.name] = verdict.whole.scale
        self.tally.add(producer(node).name, node.name, layout, verdict)
        return verdict

    def _judge_resolved(self, name: str, tensors: Sequence[Any]) -> None:
        node, layout = self._returned[name]
        self._judge(name, name, layout, self._held[node], tensors)

    def returned(self) -> list[Any]:
        """What the traced program returns, of the operands as the ranks hold them."""
        values: Any = self._nodes[-1].args[0]
        return [value_of(self._held.get(each)) if isinstance(each, fx.Node) else each for each in values]

    def _judge(self, step: str, value: str, layout: Layout, whole: Whole, tensors: Sequence[Any]) -> Verdict:
        """Judge what is only moved about, or reduced."""

        def noise(scale: torch.Tensor | None) -> torch.Tensor:
            scales = [each for each in (whole.scale, scale) if each is not None]
            return noise_of(whole.value, (), torch.stack(scales).sum(0) if scales else None)

        verdict = judge(whole.value, layout, tensors, self._ranks, noise)
        self.tally.add(step, value, layout, verdict)
        return verdict


def _usable(verdict: Verdict) -> Whole | None:
    """What the ranks hold, if operators can run on it: wrong integers may be no indices."""
    whole = verdict.whole
    return whole if whole is not None and (verdict.fault is None or is_inexact(whole.value.dtype)) else None


def _unnamed(graph: fx.Graph) -> set[int]:
    """The outputs of a graph that are made of values, and carry no name of one, as a pass may add them."""
    returned: Any = next(node for node in reversed(graph.nodes) if node.op == "output").args[0]
    return {
        position
        for position, node in enumerate(returned)
        if isinstance(node, fx.Node) and node.op == "call_function" and "spmd_value" not in node.meta
    }
