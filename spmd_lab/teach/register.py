"""`register_rule`: teaches how to divide an operator, and checks at once that this is right."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from spmd_lab.errors import ArgumentError, RuleError, expect
from spmd_lab.rules import registered_rule
from spmd_lab.rules.registered import UserRule, add_rule, remove_rule
from spmd_lab.rules.way_text import read_way
from spmd_lab.teach.examples import examples_of
from spmd_lab.teach.trial import Tried, try_rule
from spmd_lab.torch_internals.functional_ops import functional_form
from spmd_lab.torch_internals.operators import OpOverload, operator_name, overloads_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spmd_lab.rules import OpCall, Plan, Way

    Ways = str | Sequence[str | Way] | Callable[[OpCall], Plan | Sequence[str | Way]]

__all__ = ["RegisteredRule", "register_rule"]


@dataclass(frozen=True, eq=False, repr=False)
class RegisteredRule:
    """A rule that is in use until it is taken back; as a context manager, until the block ends.

    Parameters
    ----------
    op : OpOverload
        The operator.
    tried : Tried
        What it was tried on.
    """

    op: OpOverload
    tried: Tried
    _rule: UserRule

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways that were found right; none for a rule that answers with plans."""
        return self.tried.ways

    def remove(self) -> None:
        """Take the rule back: the operator is divided as it was before."""
        remove_rule(self._rule)

    def __enter__(self) -> RegisteredRule:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        ways = "".join(f"\n  {way}" for way in self.ways)
        return f"rule for {operator_name(self.op)}, equal to the whole in {self.tried.programs} programs{ways}"


@overload
def register_rule(
    op: Any, *, example: Any, replace: bool = False
) -> Callable[[Callable[[OpCall], Plan | Sequence[str | Way]]], RegisteredRule]: ...


@overload
def register_rule(op: Any, ways: Ways, *, example: Any, replace: bool = False) -> RegisteredRule: ...


def register_rule(op: Any, ways: Ways | None = None, *, example: Any, replace: bool = False) -> Any:
    """Teach how an operator runs on shards, and check it: every way is run on simulated ranks, against the whole.

    A *way* says over one mesh axis, whichever it is (``*``), what the operator reads and what it returns. In
    ``"b/* d, d o -> b/* o"`` each rank has some of the rows and the whole matrix, and makes its rows of the result;
    in ``"b d/*, d/* o -> b o{sum: *}"`` what the ranks make still has to be added up. A name that stands twice is one
    size, so that a way fits some calls and not others; ``...`` is any dims, ``_`` one of any size, and nothing at all
    a tensor without dims. On each axis the way is taken that moves least; to run the operator whole is always one.

    Parameters
    ----------
    op : operator
        One of ``torch.ops``, or what ``torch.library.custom_op`` has made. A rule for its backward, where that is an
        operator too, is registered likewise. One that writes into its arguments returns, in a traced program, their
        new values after its outputs. A rule that spmd_lab or torch have for an operator is replaced.
    ways : str, sequence, or callable
        One way, or several; each text, or a `Way` of torch's placements. A callable takes an `OpCall` and returns
        such a sequence, or a whole `Plan`, which may run several operators and collectives. Left out, the function
        below becomes that callable: ``@sl.register_rule(op, example=...)``.
    example : tuple, or list of tuples
        Arguments to try the rule on, small ones with different sizes; keyword arguments in a dict at the end. The
        dims of each way are divided evenly, unevenly, and so that some ranks have nothing.
    replace : bool
        Whether a rule that was registered before may be replaced. To remove the new one brings it back.

    Returns
    -------
    RegisteredRule
        Takes the rule back by its ``remove()``, or at the end of a ``with`` block. Expansions that exist stay as they
        are. A rule is known in this process alone.

    Raises
    ------
    RuleError
        If a way is wrong: it names the way, the rank, the element, what it should be, and what it is. Then, and if
        an example cannot tell, nothing is registered.
    NotationError
        If a way does not read.

    Examples
    --------
    >>> import torch, spmd_lab as sl
    >>> op = torch.ops.aten.trace.default
    >>> with sl.register_rule(op, "n n{sum: *} -> {sum: *}", example=(torch.randn(4, 4),)) as rule:
    ...     print(rule)
    rule for aten.trace.default, equal to the whole in 3 programs
      n n{sum: *} -> {sum: *}
    >>> sl.register_rule(op, "n/* n -> {sum: *}", example=(torch.randn(4, 4),))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    spmd_lab.errors.RuleError: the way 'n/* n -> {sum: *}' for aten.trace.default is wrong on x=2: output on rank 0 ...
    """
    if ways is None:
        return partial(_registered, op, example=example, replace=replace)
    return _registered(op, ways, example=example, replace=replace)


def _registered(op: Any, ways: Ways, *, example: Any, replace: bool) -> RegisteredRule:
    operator = _operator(op)
    if registered_rule(operator) is not None and not replace:
        raise RuleError(
            f"{operator_name(operator)} has a registered rule already",
            argument=f"op={operator_name(operator)}",
            hint="replace=True; or remove() what registering it returned",
        )
    rule = UserRule(operator, _answer(ways))
    tried = try_rule(rule, examples_of(example))
    add_rule(rule)
    return RegisteredRule(operator, tried, rule)


def _operator(op: Any) -> OpOverload:
    found = overloads_of(op)
    if len(found) == 1:
        return functional_form(found[0])
    hint = "one of " + ", ".join(map(operator_name, found)) if found else "torch.ops.mylib.swish.default"
    what = f"{op} has several overloads" if found else f"{getattr(op, '__name__', op)!r} is no operator"
    raise ArgumentError(what, argument="op", hint=hint)


def _answer(ways: Ways) -> Callable[[OpCall], Plan | Sequence[str | Way]]:
    """What to ask: ways that are stated answer every call."""
    if callable(ways):
        return ways
    expect(ways, (str, list, tuple), "ways", '["b/* d -> b/* d"], or a function of the call')
    stated = [ways] if isinstance(ways, str) else list(ways)
    if not stated:
        raise ArgumentError("ways has no way", argument="ways", hint='["b/* d -> b/* d"]')
    for each in stated:
        if isinstance(each, str):
            read_way(each)
    return lambda _: stated
