"""Where torch itself looks at the data of a tensor, only to refuse it or to go faster: answered without the data."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.distributions import constraints, continuous_bernoulli, distribution, geometric
from torch.nn.modules import transformer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

__all__ = ["assert_of_data", "checks_answered", "is_assertion"]


class _Answer(NamedTuple):
    """What a check is told, and whether the program has to see to it that this is so."""

    value: bool
    is_asserted: bool = True


_ALL_TRUE = getattr(distribution, "_all_true_or_runtime_assert", distribution.Distribution.__init__)
"""What looks at the parameters of a distribution: it has a function of its own from torch 2.15 on."""
_ANSWERS: dict[CodeType, _Answer] = {
    torch.nn.functional.gaussian_nll_loss.__code__: _Answer(False),
    _ALL_TRUE.__code__: _Answer(True),
    distribution.Distribution._validate_sample.__code__: _Answer(True),
    continuous_bernoulli.ContinuousBernoulli.__init__.__code__: _Answer(True),
    geometric.Geometric.__init__.__code__: _Answer(True),
    constraints._PositiveDefinite.check.__code__: _Answer(True),
    constraints._Square.check.__code__: _Answer(True),
    constraints._Symmetric.check.__code__: _Answer(True),
    transformer._detect_is_causal_mask.__code__: _Answer(False, is_asserted=False),
}
"""By the function that asks. A mask that is not known to be causal is added as it is, which is right for any."""


@contextmanager
def checks_answered() -> Iterator[None]:
    """Tell checks of torch's own what lets the program go on, and assert it in the graph instead."""
    FunctionalTensor.__bool__ = _is_true  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del FunctionalTensor.__bool__


def _is_true(condition: torch.Tensor) -> bool:
    asking = sys._getframe(1).f_code
    answer = _ANSWERS.get(asking)
    if answer is None:
        return torch.Tensor.__bool__(condition)
    if answer.is_asserted:
        holds = condition if answer.value else condition.logical_not()
        assert_of_data(holds, f"values that {asking.co_qualname} refuses")
    return answer.value


def assert_of_data(condition: torch.Tensor, message: str) -> None:
    """Stop with a message where a truth value, once there is data, is false."""
    torch._assert_async(condition, message)


def is_assertion(target: object) -> bool:
    """Whether an operator only stops the program, or does nothing."""
    return getattr(target, "overloadpacket", None) is torch.ops.aten._assert_async
