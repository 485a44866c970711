"""Rules that users have added; each goes before ours for its operator, and the last one added before the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch.distributed.tensor import Partial, Replicate, Shard

from spmd_lab.errors import RuleError, SpmdLabError
from spmd_lab.rules.from_nothing import from_nothing
from spmd_lab.rules.plan import Plan
from spmd_lab.rules.stock import plan_whole
from spmd_lab.rules.strategies import Way, choose_ways, run_operator
from spmd_lab.rules.way_text import MisfitError, read_way

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx

    from spmd_lab.local_graph import LocalGraphBuilder
    from spmd_lab.rules.plan import OpCall
    from spmd_lab.torch_internals.operators import OpOverload

__all__ = ["UserRule", "add_rule", "fitted", "registered_rule", "remove_rule", "run_unless_empty"]


@dataclass(frozen=True, eq=False)
class UserRule:
    """A rule of a user's.

    Parameters
    ----------
    op : OpOverload
        The operator.
    answer : callable
        Takes a call; returns ways, each as text or as a `Way`, or a whole `Plan`.
    """

    op: OpOverload
    answer: Callable[[OpCall], Plan | Sequence[Way | str]]

    def __call__(self, call: OpCall) -> Plan:
        """Plan a call: by the cheapest way on each axis, where the answer is ways."""
        answer = self.asked(call)
        if isinstance(answer, Plan):
            return answer
        ways, why = [], ""
        for each in answer:
            try:
                ways.append(fitted(each, call))
            except MisfitError as error:
                why = why or f": {each!r}, since {error}"
        if not ways:
            return plan_whole(call, f"no way of the registered rule for {call.title} fits{why}")
        return run_unless_empty(call, choose_ways(call, ways))

    def asked(self, call: OpCall) -> Plan | Sequence[Way | str]:
        """What the rule answers to a call.

        Raises
        ------
        RuleError
            If it raises, or answers neither with a plan nor with ways.
        """
        try:
            answer = self.answer(call)
        except SpmdLabError:
            raise
        except Exception as error:
            first = next(iter(str(error).strip().splitlines()), "")
            what = f"the rule for {call.title} raises {type(error).__name__}: {first}"
            hint = "it is called with an OpCall; the cause is chained to this error"
            raise RuleError(what, argument="ways", hint=hint) from error
        if not isinstance(answer, (Plan, list, tuple)):
            hint = 'a list of ways, as ["b/* d -> b/* d"], or a Plan'
            raise RuleError(f"the rule answers {type(answer).__name__}", argument="ways", hint=hint)
        return answer


def fitted(way: object, call: OpCall) -> Way:
    """The placements that a way, in whatever form, says for a call.

    Raises
    ------
    MisfitError
        If the call has other tensors or dims.
    RuleError, NotationError
        If this is no way.
    """
    if isinstance(way, str):
        return read_way(way).fitted(call)
    sides = tuple(way) if isinstance(way, (tuple, list)) else ()
    if len(sides) != 2 or not all(isinstance(side, (tuple, list)) for side in sides):
        raise RuleError(f"{way!r} is no way", hint='"b/* d -> b/* d", or Way(needs, outputs) of placements')
    needs, outputs = sides
    shapes = [*(tensor.layout.global_shape for tensor in call.tensors), *(_shape(each) for each in call.results)]
    if (len(needs), len(outputs)) != (len(call.tensors), len(call.results)):
        raise MisfitError(f"it has {len(needs)} needs and {len(outputs)} outputs")
    for placement, shape in zip((*needs, *outputs), shapes, strict=True):
        if type(placement) not in (Shard, Replicate, Partial):
            raise RuleError(f"{placement!r} is no placement of a way", hint="Shard(dim), Replicate() or Partial()")
        if isinstance(placement, Shard) and shape is not None and not -len(shape) <= placement.dim < len(shape):
            raise MisfitError(f"{placement} divides a dim that a tensor of shape {list(shape)} lacks")
    return Way(
        *(
            tuple(_from_the_front(placement, shape) for placement, shape in zip(side, part, strict=True))
            for side, part in ((needs, shapes[: len(needs)]), (outputs, shapes[len(needs) :]))
        )
    )


def _shape(result: Any) -> tuple[int, ...] | None:
    return None if result is None else tuple(result.shape)


def _from_the_front(placement: Any, shape: tuple[int, ...] | None) -> Any:
    if isinstance(placement, Shard) and placement.dim < 0 and shape is not None:
        return Shard(placement.dim + len(shape))
    return placement


def run_unless_empty(call: OpCall, plan: Plan) -> Plan:
    """The same plan, but a rank that has nothing to give, for it has been given nothing, does not run the operator."""
    uneven = frozenset[str]().union(*(layout.uneven_axes for layout in (*plan.needs, *filter(None, plan.outputs))))
    if not uneven:
        return plan
    run = run_operator(call)

    def emit(builder: LocalGraphBuilder, nodes: tuple[fx.Node, ...]) -> Any:
        made = from_nothing(builder, nodes, plan.needs, plan.outputs)
        return run(builder, nodes) if made is None else made

    return replace(plan, emit=emit)


_REGISTERED: dict[OpOverload, list[UserRule]] = {}


def registered_rule(op: object) -> UserRule | None:
    """The rule that a user has registered for an operator; None where there is none."""
    rules = _REGISTERED.get(op)  # type: ignore[call-overload]
    return rules[-1] if rules else None


def add_rule(rule: UserRule) -> None:
    """Let a rule go before all others of its operator."""
    _REGISTERED.setdefault(rule.op, []).append(rule)


def remove_rule(rule: UserRule) -> None:
    """Take a rule back; nothing happens if that has been done."""
    rules = _REGISTERED.get(rule.op, [])
    if rule in rules:
        rules.remove(rule)
