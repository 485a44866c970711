"""Tries a rule that a user states: every way that it offers is run on simulated ranks, against the whole."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.elements import chunk_size
from spmd_lab.errors import RuleError
from spmd_lab.expand import expand
from spmd_lab.mesh import Mesh
from spmd_lab.rules import OpCall, Plan, Way
from spmd_lab.rules.checking import misfit
from spmd_lab.rules.registered import UserRule, add_rule, fitted, remove_rule, run_unless_empty
from spmd_lab.rules.strategies import everything_whole, take_ways
from spmd_lab.rules.way_text import MisfitError, write_way
from spmd_lab.teach.examples import traced_alone
from spmd_lab.teach.verdict import Taken, divergent, wrong

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch
    from torch.distributed.tensor.placement_types import Placement

    from spmd_lab.teach.examples import Example
    from spmd_lab.torch_internals.operators import OpOverload
    from spmd_lab.trace import TracedGraph

__all__ = ["Tried", "try_rule"]

_MOST_RANKS = 16
_MOST_PLACINGS = 40


class Tried(NamedTuple):
    """What was found right.

    Parameters
    ----------
    ways : tuple of str
        The ways, as the notation has them; none for a rule that answers with plans.
    programs : int
        How many programs were run.
    """

    ways: tuple[str, ...]
    programs: int


def try_rule(rule: UserRule, examples: Sequence[Example]) -> Tried:
    """Run a rule on examples: each way over shards that are even, uneven and empty, and each with each on two axes.

    A rule that answers with plans is run on every way to place its tensors, within reason.

    Raises
    ------
    RuleError
        If it is wrong anywhere, if a way fits no example, or if an example cannot tell.
    """
    unfit: dict[str, str] = {}
    right: dict[str, None] = {}
    programs = 0
    for example in examples:
        traced = traced_alone(rule.op, example)
        call, answer = _asked(rule, traced)
        if isinstance(answer, Plan):
            programs += _try_plans(rule, traced, call)
            continue
        ways = _fitting(answer, call, unfit)
        right.update(dict.fromkeys(each.text for each in ways))
        programs += _try_ways(rule.op, traced, call, ways)
    for text, why in unfit.items():
        if text not in right:
            raise RuleError(
                f"the way {text!r} fits no example: {why}",
                argument="example",
                hint="an example for it as well, in a list: example=[(x,), (y, z)]",
                way=text,
            )
    return Tried(tuple(right), programs)


def _asked(rule: UserRule, traced: TracedGraph) -> tuple[OpCall, Any]:
    """The call that an example makes, and what the rule answers to it."""
    heard: list[tuple[OpCall, Any]] = []

    def listening(call: OpCall) -> Plan:
        heard.append((call, rule.asked(call)))
        return take_ways(call, [everything_whole(call)])

    with _known(UserRule(rule.op, listening)):
        expand(traced, Mesh(x=2))
    return heard[0]


def _fitting(answer: Sequence[object], call: OpCall, unfit: dict[str, str]) -> list[Taken]:
    """The ways that fit a call; what the others lack is noted."""
    found: list[Taken] = []
    for each in answer:
        try:
            way = fitted(each, call)
        except MisfitError as error:
            unfit.setdefault(str(each), str(error))
            continue
        text = each.strip() if isinstance(each, str) else write_way(way, call)
        twin = next((other for other in found if other.way.needs == way.needs), None)
        if twin is not None:
            raise RuleError(
                f"the ways {twin.text!r} and {text!r} need the same, and so the second would never be taken",
                argument="ways",
                hint="leave one of them out",
                way=text,
            )
        found.append(Taken(text, way))
    return found


@contextmanager
def _known(rule: UserRule) -> Iterator[None]:
    """Let a rule be known while it is tried."""
    add_rule(rule)
    try:
        yield
    finally:
        remove_rule(rule)


# --- ways ---------------------------------------------------------------------------------------


def _try_ways(op: OpOverload, traced: TracedGraph, call: OpCall, ways: Sequence[Taken]) -> int:
    """Run each way on one axis of several sizes, and each with each on two; count the programs."""
    alone = [(Mesh(x=size), (way,)) for way in ways for size in _axis_sizes(call, way.way)]
    together = [(Mesh(x=2, y=2), pair) for pair in itertools.product(ways, repeat=2)]
    for mesh, taken in (*alone, *together):
        rule = UserRule(op, _taking(taken))
        placings = [[each.way.needs[index] for each in taken] for index in range(len(call.tensors))]
        _run(rule, traced, mesh, placings, taken)
    return len(alone) + len(together)


def _axis_sizes(call: OpCall, way: Way) -> list[int]:
    """Axis sizes that divide the dims of a way evenly, unevenly, and so that some rank has nothing."""
    lengths = {
        tensor.layout.global_shape[need.dim]
        for tensor, need in zip(call.tensors, way.needs, strict=True)
        if isinstance(need, Shard)
    }
    sizes = {2, 3}
    for length in lengths:
        for is_such in (_is_even, _is_uneven, _leaves_nothing):
            sizes.update([size for size in range(2, _MOST_RANKS + 1) if is_such(length, size)][:1])
    return sorted(sizes)


def _is_even(length: int, size: int) -> bool:
    return length % size == 0


def _is_uneven(length: int, size: int) -> bool:
    return length % size != 0


def _leaves_nothing(length: int, size: int) -> bool:
    return chunk_size(length, size) * (size - 1) >= length


def _taking(taken: tuple[Taken, ...]) -> Callable[[OpCall], Plan]:
    """A rule that takes these ways, one an axis; it is called with their own needs."""
    return lambda call: run_unless_empty(call, take_ways(call, [each.way for each in taken]))


# --- plans --------------------------------------------------------------------------------------


def _try_plans(rule: UserRule, traced: TracedGraph, call: OpCall) -> int:
    """Run a rule on tensors placed in all ways on one axis, and some of those on two; count the programs."""
    placings = _placings(call)
    shifted = [*placings[1:], placings[0]]
    alone = [(Mesh(x=size), [placing]) for size in (2, 3, 4) for placing in placings]
    together = [(Mesh(x=2, y=2), list(pair)) for pair in zip(placings, shifted, strict=True)]
    for mesh, chosen in (*alone, *together):
        _run(rule, traced, mesh, [list(column) for column in zip(*chosen, strict=True)])
    return len(alone) + len(together)


def _placings(call: OpCall) -> list[tuple[Placement, ...]]:
    """One placement per tensor, in every combination; where these are too many, one tensor at a time."""
    options = [_options(tensor.layout.global_shape, tensor.layout.dtype) for tensor in call.tensors]
    every = list(itertools.islice(itertools.product(*options), _MOST_PLACINGS + 1))
    if len(every) <= _MOST_PLACINGS:
        return every
    whole: tuple[Placement, ...] = (Replicate(),) * len(options)
    return [(*whole[:index], each, *whole[index + 1 :]) for index, found in enumerate(options) for each in found]


def _options(shape: tuple[int, ...], dtype: torch.dtype) -> list[Placement]:
    pending = [Partial()] if dtype.is_floating_point or dtype.is_complex else []
    return [Replicate(), *(Shard(dim) for dim in range(len(shape))), *pending]


# --- one program --------------------------------------------------------------------------------


def _run(
    rule: UserRule,
    traced: TracedGraph,
    mesh: Mesh,
    placings: Sequence[Sequence[Placement]],
    taken: Sequence[Taken] = (),
) -> None:
    """Expand the one operator, and hold what the ranks compute against the whole."""
    layouts: dict[str, object] = {}

    def checked(call: OpCall) -> Plan:
        plan = rule(call)
        problem = misfit(call, plan)
        layouts.update(zip(names, plan.needs, strict=True))
        if problem is not None:
            raise wrong(rule.op, mesh, taken, problem, layouts)
        return plan

    names = [found.name for found in traced.inputs]
    with _known(UserRule(rule.op, checked)):
        expansion = expand(
            traced, mesh, inputs=dict(zip(names, placings, strict=True)), pending="keep", unsupported="error"
        )
        report = expansion.program.verify()
    if not report.ok:
        raise divergent(rule.op, mesh, taken, report, layouts)
