"""The plans of a distributed module: one for each kind of call, made by all ranks together."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from spmd_lab.errors import ArgumentError, SpmdLabError
from spmd_lab.run.agreement import digest, exchange, exchange_digests
from spmd_lab.run.calls import CallKind, example_of, whole_kind
from spmd_lab.run.constants import Constants
from spmd_lab.run.plan import make_plan
from spmd_lab.run.same_program import program_identity, require_same
from spmd_lab.torch_internals.fakes import FakeTensorMode
from spmd_lab.trace import trace_for_autograd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from spmd_lab.layout import Layout
    from spmd_lab.rebuild import Program
    from spmd_lab.run.placing import Request
    from spmd_lab.run.plan import Plan
    from spmd_lab.trace import TracedGraph
    from spmd_lab.trace.arguments import Arguments

__all__ = ["Plans"]

_MOST = 32
"""Kinds of call whose programs are kept: the latest."""


class _Kept(NamedTuple):
    """A plan, and the constants whose identity is part of its kind: while it is kept, no other object can be them."""

    plan: Plan
    constants: tuple[object, ...]


class Plans:
    """A bounded store of plans, the same on every rank.

    Ranks find a plan by the kinds of call that all of them make: what they have to agree on is one number each, and
    since all hold the same plans, all of them know it or none does.

    Parameters
    ----------
    request : Request
        The user's.
    arguments : Arguments
        The example, with whole tensors.
    """

    def __init__(self, request: Request, arguments: Arguments) -> None:
        self._request = request
        examples = [leaf.value for leaf in arguments.tensors]
        whole = range(len(examples)) if request.global_inputs else ()
        self.first = self._agreed(make_plan(request, self._trace(arguments, examples), whole, None))
        self._layouts = _argument_layouts(self.first, arguments)
        self._refuse_pending_wholes()
        self.constants = Constants(request)
        self._plans: OrderedDict[tuple[int, ...], _Kept] = OrderedDict()

    @property
    def programs(self) -> tuple[Program, ...]:
        """Those of the calls so far, the latest last."""
        return tuple(dict.fromkeys(kept.plan.program for kept in self._plans.values()))

    def add_example(self, kind: CallKind, arguments: Arguments) -> None:
        """Let the calls that are of the example's kind find its plan."""
        ranks, constants = range(self._request.mesh.size), _constants(arguments)
        kinds = [kind if self._request.global_inputs else kind.local(self._layouts, rank) for rank in ranks]
        self._plans[tuple(map(digest, kinds))] = _Kept(self.first, constants)

    def plan(
        self,
        call: CallKind | SpmdLabError,
        arguments: Arguments | None,
        following: Callable[[], AbstractContextManager[None]],
        *,
        reduced: bool,
    ) -> Plan:
        """The plan for a call that all ranks make; made now where there is none.

        Parameters
        ----------
        call : CallKind or SpmdLabError
            What this rank calls with, or why it cannot.
        arguments : Arguments or None
            The call itself.
        following : callable
            Makes a context in which the user's module is as its distributed state is now.
        reduced : bool
            Whether the gradients of parameters are; the mode of the call says so too.

        Raises
        ------
        SpmdLabError
            On every rank, if the calls do not belong together or the program cannot be made.
        """
        mesh, device_mesh = self._request.mesh, self._request.device_mesh
        number = digest(call)
        numbers = exchange_digests(number, device_mesh) if mesh.size > 1 else (number,)
        if numbers in self._plans:
            self._plans.move_to_end(numbers)
            return self._plans[numbers].plan
        calls = exchange(call, device_mesh)
        _raise_refusals(calls, self._request.rank)
        assert arguments is not None
        with following():
            plan = self._made(calls, arguments, reduced=reduced)
        self._plans[numbers] = _Kept(plan, _constants(arguments))
        if len(self._plans) > _MOST:
            self._plans.popitem(last=False)
            self.constants.keep_for([self.first, *(kept.plan for kept in self._plans.values())])
        return plan

    def _made(self, calls: Sequence[CallKind], arguments: Arguments, *, reduced: bool) -> Plan:
        kind = whole_kind(calls, self._layouts)
        device = self._request.device_mesh.device_type
        with FakeTensorMode():
            examples = [example_of(each, device) for _, each in kind.tensors]
        whole = [position for position, (_, each) in enumerate(calls[0].tensors) if each.is_whole]
        traced = self._trace(arguments, examples)
        return self._agreed(make_plan(self._request, traced, whole, self.first.expansion, reduced=reduced))

    def _agreed(self, plan: Plan) -> Plan:
        """A plan that every rank has made alike: else they would wait for one another, or add up different things."""
        program = plan.program
        told = f"{program.expansion.name}, {len(program.collectives)} collectives"
        require_same(program_identity(program), told, self._request.device_mesh)
        return plan

    def _trace(self, arguments: Arguments, examples: Sequence[torch.Tensor]) -> TracedGraph:
        args, kwargs = arguments.with_tensors(examples)
        request = self._request
        with torch.inference_mode(mode=False):
            return trace_for_autograd(request.module, args, kwargs, request.loss, backward=torch.is_grad_enabled())

    def _refuse_pending_wholes(self) -> None:
        for name, layout in self._layouts.items():
            if self._request.global_inputs and layout.is_pending:
                raise ArgumentError(
                    f"input {name!r} is pending: it has no whole to pass",
                    argument="global_inputs=True",
                    layouts={name: layout},
                    hint="pass each rank's piece, without global_inputs",
                )


def _argument_layouts(plan: Plan, arguments: Arguments) -> dict[str, Layout]:
    """How each tensor argument lies on the mesh, by its name in a call."""
    passed = [layout for found, layout in plan.inputs if found.role == "input" and not found.closure]
    return {leaf.name: layout for leaf, layout in zip(arguments.tensors, passed, strict=True)}


def _constants(arguments: Arguments) -> tuple[object, ...]:
    return tuple(leaf.value for leaf in arguments.leaves if not isinstance(leaf.value, torch.Tensor))


def _raise_refusals(calls: list[Any], rank: int) -> None:
    """Where some rank cannot make its call, no rank goes on."""
    if isinstance(calls[rank], SpmdLabError):
        raise calls[rank]
    for index, call in enumerate(calls):
        if isinstance(call, SpmdLabError):
            raise ArgumentError(
                f"rank {index} cannot make this call: {call.what}", argument=call.argument, hint=call.hint
            )
