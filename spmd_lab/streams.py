"""Random numbers of several runs in one process: each goes on where it stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

__all__ = ["Stream", "common_draw", "draw_locally", "filling_strides", "random_state"]


class Stream:
    """A stream of random numbers that starts where the generators stand now.

    While it is entered, draws come from it; what is outside goes on as if nothing had been drawn.

    Parameters
    ----------
    state : list of torch.Tensor, optional
        Where it starts, as `random_state` gives it.

    Examples
    --------
    >>> one, other = Stream(), Stream()
    >>> with one:
    ...     first = torch.rand(3)
    >>> with other:
    ...     second = torch.rand(3)
    >>> with one:
    ...     third = torch.rand(3)
    >>> torch.equal(first, second), torch.equal(first, third)
    (True, False)
    """

    def __init__(self, state: list[torch.Tensor] | None = None) -> None:
        self.state = random_state() if state is None else state
        self._outside = self.state

    @classmethod
    def seeded(cls, seed: int) -> Stream:
        """The stream that ``torch.manual_seed(seed)`` starts."""
        stream = cls()
        with stream:
            torch.manual_seed(seed)
        return stream

    def __enter__(self) -> Stream:
        self._outside = random_state()
        _restore(self.state)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.state = random_state()
        _restore(self._outside)

    def again(self) -> Stream:
        """A stream that starts where this one stands."""
        return Stream(self.state)


_FAR_APART = 1_000_003


def draw_locally(op: Callable[..., Any], shard: int, *args: Any, **kwargs: Any) -> Any:
    """Call an operator that draws, in the stream of one shard.

    Ranks that hold the same shard draw the same; the common stream advances by one draw on every rank.

    Examples
    --------
    >>> first, other, same = (Stream.seeded(0) for _ in range(3))
    >>> with first:
    ...     a = draw_locally(torch.rand, 0, 3)
    >>> with other:
    ...     b = draw_locally(torch.rand, 1, 3)
    >>> with same:
    ...     c = draw_locally(torch.rand, 0, 3)
    >>> torch.equal(a, b), torch.equal(a, c)
    (False, True)
    """
    with Stream.seeded(common_draw() * _FAR_APART + shard):
        return op(*args, **kwargs)


def common_draw() -> int:
    """The draw by which the stream that all ranks have in common advances where each shard draws for itself."""
    return int(torch.randint(2**31, ()))


def random_state() -> list[torch.Tensor]:
    """The state of the CPU's generator, and of each GPU's that is in use."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [])]


def filling_strides(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """The strides of the tensor that an operator makes for a given one, and fills: of an expanded one, other strides.

    Examples
    --------
    >>> filling_strides((6, 4), (1, 6)), filling_strides((6, 4), (0, 1))
    ((1, 6), (4, 1))
    """
    return torch.empty_like(torch.empty_strided(shape, stride, device="meta")).stride()


def _restore(state: list[torch.Tensor]) -> None:
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state_all(state[1:])
