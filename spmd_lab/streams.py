"""Random numbers of several runs in one process: each goes on where it stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Stream", "random_state"]


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


def random_state() -> list[torch.Tensor]:
    """The state of the CPU's generator, and of each GPU's that is in use."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [])]


def _restore(state: list[torch.Tensor]) -> None:
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state_all(state[1:])
