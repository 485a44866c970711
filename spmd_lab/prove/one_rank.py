"""The run of one rank: its graph, node by node, up to where other ranks are concerned."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import fx

from spmd_lab.errors import SpmdLabError, VerificationError
from spmd_lab.prove.collectives import WAIT, Request, is_collective, request_of
from spmd_lab.streams import Stream, draw_locally
from spmd_lab.torch_internals.mutation import is_mutating
from spmd_lab.torch_internals.operators import is_operator, is_random
from spmd_lab.trace.uses import last_uses

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    import torch

__all__ = ["Meeting", "Plan", "Report", "Run", "SimulationError", "operand_ends"]


class SimulationError(VerificationError):
    """A program that ranks cannot run together.

    Attributes
    ----------
    step : str or None
        The step where they stop.
    rank : int
        The first rank concerned.
    """

    def __init__(self, what: str, step: str | None, rank: int, hint: str | None = None) -> None:
        super().__init__(what, node=step, hint=hint)
        self.step = step
        self.rank = rank


@dataclass(frozen=True)
class Meeting:
    """A rank that waits for its group."""

    step: str | None
    request: Request
    tensor: torch.Tensor


@dataclass(frozen=True)
class Report:
    """Something that a rank holds and the others will hold too."""

    key: tuple[object, ...]
    held: tuple[Any, ...]


def operand_ends(graph: fx.Graph) -> dict[fx.Node, tuple[str, int, fx.Node]]:
    """The last nodes of redistributions: the step, the position of the operand, and the node that is redistributed.

    What is redistributed may go unread on a rank: an operator need not run on nothing.
    """
    ends: dict[fx.Node, tuple[str, int, fx.Node]] = {}
    sources: dict[tuple[str, int], fx.Node] = {}
    last: dict[tuple[str, int], fx.Node] = {}
    for node in graph.nodes:
        key = _operand_of(node)
        if key is None or node.op == "get_attr":
            continue
        for read in node.all_input_nodes:
            if _operand_of(read) != key:
                sources.setdefault(key, read)
        if key in sources:
            last[key] = node
            if any(_operand_of(user) != key for user in node.users):
                ends[node] = (*key, sources[key])
    read_somewhere = {(step, operand) for step, operand, _ in ends.values()}
    ends.update({node: (*key, sources[key]) for key, node in last.items() if key not in read_somewhere})
    return ends


def _operand_of(node: fx.Node) -> tuple[str, int] | None:
    if "spmd_operand" not in node.meta:
        return None
    return node.meta["spmd_step"], node.meta["spmd_operand"]


class Plan:
    """What ranks that share a graph need to know of it."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.nodes = tuple(module.graph.nodes)
        self.ends = operand_ends(module.graph)
        self.draws = any(
            node.target is draw_locally or (is_operator(node.target) and is_random(node.target)) for node in self.nodes
        )
        self.mutates = any(node.op == "call_function" and is_mutating(node.target) for node in self.nodes)
        self.frees = last_uses(self.nodes, lambda node: self.ends[node][2:] if node in self.ends else ())

    @property
    def stops(self) -> int:
        """How often a rank has something to report, or waits for others."""
        values = [node for node in self.nodes if "spmd_value" in node.meta and node.op != "placeholder"]
        return len(self.ends) + len(values) + sum(map(_is_meeting, self.nodes))


class Run:
    """The run of one rank, as far as it has come; its random numbers are its own."""

    def __init__(self, rank: int, plan: Plan, inputs: Sequence[torch.Tensor]) -> None:
        self._stream = Stream() if plan.draws else None
        self.rank = rank
        self.outputs: tuple[Any, ...] = ()
        self.finished = False
        self.waiting: Meeting | None = None
        self._answer: torch.Tensor | None = None
        self._steps = _steps(rank, plan, inputs)

    def resume(self) -> Report | None:
        """Go on until there is something to report, the group has to be met, or the end is reached."""
        answer, self._answer = self._answer, None
        try:
            with self._stream or nullcontext():
                event = self._steps.send(answer)
        except StopIteration as end:
            self.finished, self.outputs = True, end.value
            return None
        if isinstance(event, Meeting):
            self.waiting = event
            return None
        return event

    def receive(self, result: torch.Tensor) -> None:
        """Take what the group has made."""
        self.waiting, self._answer = None, result


def _steps(
    rank: int, plan: Plan, inputs: Sequence[torch.Tensor]
) -> Generator[Meeting | Report, torch.Tensor | None, tuple[Any, ...]]:
    """Run one graph node by node, stopping at what concerns other ranks."""
    held: dict[fx.Node, Any] = {}
    given = iter(inputs)
    for node in plan.nodes:
        step = node.meta.get("spmd_step")
        if node.op == "output":
            outputs = fx.map_arg(node.args[0], held.__getitem__)
            return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
        if node.op == "placeholder":
            held[node] = next(given)
        elif _is_meeting(node):
            tensor, request = request_of(node.target, *_arguments(node, held))
            held[node] = yield Meeting(step, request, tensor)
        else:
            held[node] = _computed(rank, plan.module, node, held)
        if node in plan.ends:
            name, index, source = plan.ends[node]
            yield Report(("operand", name, index), (held[source], held[node]))
        if "spmd_value" in node.meta and node.op != "placeholder":
            yield Report(("value", node.meta["spmd_value"]), (held[node],))
        for done in plan.frees.get(node, ()):
            del held[done]
    return ()


def _is_meeting(node: fx.Node) -> bool:
    return node.op == "call_function" and is_collective(node.target)


def _arguments(node: fx.Node, held: dict[fx.Node, Any]) -> tuple[Any, Any]:
    return fx.map_arg(node.args, held.__getitem__), fx.map_arg(node.kwargs, held.__getitem__)


def _computed(rank: int, module: fx.GraphModule, node: fx.Node, held: dict[fx.Node, Any]) -> Any:
    """What a node that concerns this rank alone computes."""
    target: Any = node.target
    args, kwargs = _arguments(node, held)
    try:
        if node.op == "get_attr":
            value: Any = module
            for part in target.split("."):
                value = getattr(value, part)
            return value
        if node.op == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        if node.op == "call_module":
            return module.get_submodule(target)(*args, **kwargs)
        return args[0] if target is WAIT else target(*args, **kwargs)
    except SpmdLabError:
        raise
    except Exception as error:
        what = f"rank {rank} cannot run {target}: {str(error).strip().splitlines()[0] if str(error) else error!r}"
        hint = "compare the local shapes that reach it with those that it needs"
        raise SimulationError(what, node.meta.get("spmd_step"), rank, hint) from error
