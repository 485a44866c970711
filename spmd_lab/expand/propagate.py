"""Walks the traced graph, node by node: plans each operator and notes the layout of every value."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import fx

from spmd_lab.errors import ExpansionError, SpmdLabError, UnsupportedOperatorError
from spmd_lab.expand.found import Steps
from spmd_lab.expand.in_use import InUse
from spmd_lab.expand.steps import make_step
from spmd_lab.expand.subgraph import Subgraph, known_subgraphs, moving
from spmd_lab.layout import replicated
from spmd_lab.progress import progress
from spmd_lab.rules import OpCall, TensorArg, plan_call, registered_rule
from spmd_lab.torch_internals.operators import is_operator, is_random

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from spmd_lab.expand.values import Step
    from spmd_lab.layout import Layout
    from spmd_lab.mesh import Mesh
    from spmd_lab.trace.values import TracedGraph

__all__ = ["Propagated", "Random", "Unsupported", "propagate"]

Unsupported = Literal["replicate", "error"]
Random = Literal["exact", "local"]


class Propagated(NamedTuple):
    """Every operator expanded: the steps in order, the layout of every value, the subgraph of every step."""

    steps: list[Step]
    layouts: dict[str, Layout]
    subgraphs: dict[str, Subgraph]


def propagate(
    traced: TracedGraph,
    mesh: Mesh,
    layouts: dict[str, Layout],
    late: Callable[[fx.Node, dict[str, Layout]], Layout],
    unsupported: Unsupported = "replicate",
    random: Random = "exact",
    in_use: InUse | None = None,
) -> Propagated:
    """Expand every operator of the traced program.

    Parameters
    ----------
    traced : TracedGraph
        The program of one device.
    mesh : Mesh
        The mesh.
    layouts : dict
        The layouts of the inputs by name; a tangent is missing in it, since it follows from its output.
    late : callable
        Gives the layout of such a placeholder when an operator first reads it, from the layouts known by then.
    unsupported : str
        "replicate" keeps the fallbacks of operators without a rule, "error" refuses them.
    random : str
        "exact" draws the numbers of a single device, "local" lets each shard draw its own.
    in_use : InUse, optional
        The inputs that operators read in other layouts than those that they have.

    Returns
    -------
    Propagated
        The steps in order, and what later stages need of them.

    Raises
    ------
    UnsupportedOperatorError
        If fallbacks are refused: all of them are named, each once, with the lines that call them.
    """
    walk = _Walk(traced, mesh, late, random, in_use or InUse(traced, {}, in_each_phase=True))
    names = {found.node: found.name for found in traced.inputs}
    walk.layouts.update({node: layouts[name] for node, name in names.items() if name in layouts})
    walk.shown.update(names)
    nodes = traced.graph_module.graph.nodes
    for node in progress(nodes, f"expanding {traced.name}", len(nodes)):
        if node.op == "get_attr":
            walk.layouts[node.name] = walk.whole(node.meta["val"])
        elif node.op == "call_function":
            _visit(walk, node)
    if unsupported == "error":
        walk.refuse_gaps()
    return Propagated(walk.steps, walk.layouts, walk.subgraphs)


def _visit(walk: _Walk, node: fx.Node) -> None:
    """Expand a node; an error takes along what was expanded before it."""
    try:
        walk.visit(node)
    except SpmdLabError as error:
        error.steps = Steps(walk.steps)
        raise


class _Walk:
    """The state of one walk."""

    def __init__(
        self,
        traced: TracedGraph,
        mesh: Mesh,
        late: Callable[[fx.Node, dict[str, Layout]], Layout],
        random: Random,
        in_use: InUse,
    ) -> None:
        self.traced = traced
        self.in_use = in_use
        self.random = random
        self.mesh = mesh
        self.late = late
        self.layouts: dict[str, Layout] = {}
        self.shown: dict[str, str] = {}
        self.steps: list[Step] = []
        self.flat_outputs: dict[str, tuple[Layout | None, ...]] = {}
        self.subgraphs: dict[str, Subgraph] = {}

    def whole(self, value: torch.Tensor) -> Layout:
        return replicated(value.shape, value.dtype, self.mesh)

    def visit(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            producer, index = node.args
            assert isinstance(producer, fx.Node)
            assert isinstance(index, int)
            layout = self.flat_outputs[producer.name][index]
            if layout is not None:
                self.layouts[node.name] = layout
            return
        for each in node.all_input_nodes:
            self.gather(each, node)
        subgraph, read = self.expand(node)
        self.subgraphs[node.name] = subgraph
        outputs = subgraph.plan.outputs
        if isinstance(node.meta.get("val"), (tuple, list)):
            self.flat_outputs[node.name] = outputs
        elif outputs and outputs[0] is not None:
            self.layouts[node.name] = outputs[0]
        names = tuple(self.read_as(each, node) for each in read)
        self.steps.append(
            make_step(node.name, str(node.target), self.traced.source(node), self.traced.phase(node), names, subgraph)
        )

    def expand(self, node: fx.Node) -> tuple[Subgraph, tuple[fx.Node, ...]]:
        """The subgraph of a node, built or found, and the nodes that it reads."""
        call, read, key = self.call_of(node)
        found = known_subgraphs.find(key, lambda: self.build(node, call, read))
        return found, read

    def build(self, node: fx.Node, call: OpCall, read: tuple[fx.Node, ...]) -> Subgraph:
        try:
            plan = plan_call(call)
        except ExpansionError as error:
            pairs = zip(read, call.tensors, strict=True)
            layouts = {self.read_as(each, node): tensor.layout for each, tensor in pairs}
            source = self.traced.source(node)
            raise type(error)(error.what, node=node.name, source=source, layouts=layouts, hint=error.hint) from error
        same_as = tuple(read.index(each) for each in read)
        return Subgraph(self.mesh, call.has, same_as, plan, gives_tuple=call.gives_several)

    def call_of(self, node: fx.Node) -> tuple[OpCall, tuple[fx.Node, ...], Hashable]:
        """The call that a node makes, the tensor nodes that it reads, and what makes two calls equal work."""
        read: list[fx.Node] = []
        tensors: list[TensorArg] = []

        def convert(value: Any) -> Any:
            if isinstance(value, fx.Node):
                meta = value.meta["val"]
                if not isinstance(meta, torch.Tensor):
                    raise self.error(node, f"{node.target} reads {value.name}, which is no tensor")
                gathered = self.in_use.gather(value, node)
                layout = self.layout_of(value) if gathered is None else gathered.need
                found = TensorArg(len(tensors), layout, meta.stride())
                tensors.append(found)
                read.append(value)
                return found
            if isinstance(value, (list, tuple)):
                kind = list if isinstance(value, list) else tuple
                return kind(convert(each) for each in value)
            if isinstance(value, dict):
                return {name: convert(each) for name, each in value.items()}
            return value

        args, kwargs = convert(node.args), convert(node.kwargs)
        if not is_operator(node.target):
            raise self.error(node, f"{node.target} is no ATen operator", UnsupportedOperatorError)
        result = node.meta.get("val")
        call = OpCall(node.target, tuple(args), dict(kwargs), tuple(tensors), result, self.mesh, self.random)
        same_as = tuple(read.index(each) for each in read)
        how = self.random if is_random(node.target) else ""
        constants = (_frozen(args), _frozen(kwargs), self.mesh, same_as, _result_key(result), how)
        return call, tuple(read), (node.target, *constants, registered_rule(node.target))

    def gather(self, value: fx.Node, reader: fx.Node) -> None:
        """Add the step whose result a node reads in the place of a value, where it is the first one to read it."""
        found = self.in_use.gather(value, reader)
        if found is None or found.step in self.subgraphs:
            return
        self.layouts[found.step] = found.need
        subgraph = self.subgraphs[found.step] = moving(self.layouts[value.name], found.need)
        source, phase = self.traced.source(reader), self.traced.phase(reader)
        self.steps.append(make_step(found.step, "gather", source, phase, (self.shown_name(value),), subgraph))

    def read_as(self, value: fx.Node, reader: fx.Node) -> str:
        """The name of a value as a node reads it: of what is gathered, the name of the step that does."""
        found = self.in_use.gather(value, reader)
        return self.shown_name(value) if found is None else found.step

    def layout_of(self, node: fx.Node) -> Layout:
        if node.name not in self.layouts:
            self.layouts[node.name] = self.late(node, self.layouts)
        return self.layouts[node.name]

    def shown_name(self, node: fx.Node) -> str:
        """The user's name of an input, else the node's own."""
        return self.shown.get(node.name, node.name)

    def error(self, node: fx.Node, what: str, kind: type[ExpansionError] = ExpansionError) -> ExpansionError:
        return kind(what, node=node.name, source=self.traced.source(node))

    def refuse_gaps(self) -> None:
        """Raise what is only possible by gathering: one gap as it is, several in one list."""
        gaps = list({(step.fallback, step.source): _gap(step) for step in self.steps if step.fallback}.values())
        if len(gaps) == 1:
            raise gaps[0]
        if gaps:
            listed = "\n".join(str(gap) for gap in gaps)
            raise UnsupportedOperatorError(f"{len(gaps)} calls cannot be expanded:\n{listed}")


def _gap(step: Step) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(
        step.fallback or "",
        node=step.name,
        source=step.source,
        layouts={operand.name: operand.have for operand in step.operands},
        hint='unsupported="replicate" gathers what it reads; sl.register_rule teaches how to divide it',
    )


def _result_key(value: object) -> Hashable:
    """What distinguishes results: shapes, strides and dtypes."""
    if isinstance(value, (tuple, list)):
        return (type(value).__name__, *(_result_key(each) for each in value))
    return (tuple(value.shape), value.stride(), value.dtype) if isinstance(value, torch.Tensor) else None


def _frozen(value: Any) -> Hashable:
    """A hashable form in which 1, 1.0 and True differ, and nan equals itself."""
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *(_frozen(each) for each in value))
    if isinstance(value, dict):
        return tuple((name, _frozen(each)) for name, each in value.items())
    if isinstance(value, (int, float, complex)):
        return (type(value).__name__, repr(value))
    return value  # type: ignore[no-any-return]
