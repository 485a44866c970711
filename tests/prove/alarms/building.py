"""A program that grows at random, line by line, together with the inputs that its lines ask for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

VALUES = ("normal", "normal", "normal", "positive", "small integers", "some zeros", "zeros", "constant", "one large")
"""What the elements of an input may be like; with infinite ones where a program asks for these."""


@dataclass(frozen=True)
class Line:
    """One line: a function of values, by their positions."""

    name: str
    function: Callable[..., Any]
    reads: tuple[int, ...]


@dataclass
class Building:
    """Inputs and lines so far, and what a single device makes of them: each value is known when the next line is drawn.

    Parameters
    ----------
    draw : random.Random
        Decides everything.
    dtype : torch.dtype
        Of what is rounded.
    scale : float
        About how large the first input is.
    infinite : bool
        Whether an element of the first input is infinite. An infinite factor would make no number of those pieces of a
        sum that are zero: such a program is not right.
    """

    draw: random.Random
    dtype: torch.dtype
    scale: float
    infinite: bool = False
    inputs: list[torch.Tensor] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    places: list[int | None] = field(default_factory=list)

    def fresh(self, shape: Sequence[int], scale: float = 1.0) -> int:
        """One more input; the position of its value."""
        generator = torch.Generator().manual_seed(self.draw.randrange(2**31))
        value = _elements(self.draw.choice(VALUES), shape, generator) * scale
        if self.infinite and not self.inputs and value.numel() > 2:
            value.view(-1)[self.draw.randrange(value.numel())] = self.draw.choice([torch.inf, -torch.inf])
        return self._given(value.to(self.dtype))

    def indices(self, shape: Sequence[int], bound: int) -> int:
        """One more input, of integers below a bound."""
        generator = torch.Generator().manual_seed(self.draw.randrange(2**31))
        return self._given(torch.randint(0, bound, tuple(shape), generator=generator))

    def add(self, name: str, function: Callable[..., Any], *reads: int) -> None:
        """One more line; it is run at once."""
        value = function(*(self.values[each] for each in reads))
        self.lines.append(Line(name, function, reads))
        self.places.append(None)
        self.values.append(value)

    def _given(self, value: torch.Tensor) -> int:
        self.places.append(len(self.inputs))
        self.inputs.append(value)
        self.values.append(value)
        return len(self.values) - 1

    def program(self, returns: Sequence[int]) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The whole as a function of its inputs."""
        places, lines = tuple(self.places), tuple(self.lines)

        def program(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            rest = iter(lines)
            values: list[torch.Tensor] = []
            for place in places:
                if place is None:
                    line = next(rest)
                    values.append(line.function(*(values[each] for each in line.reads)))
                else:
                    values.append(inputs[place])
            return tuple(values[each] for each in returns)

        return program


def _elements(kind: str, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    value = torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
    if kind == "positive":
        return value.abs() + 0.1
    if kind == "small integers":
        return (value * 2).round()
    if kind == "some zeros":
        return value * (torch.rand(value.shape, generator=generator) < 0.5)
    if kind == "zeros":
        return torch.zeros_like(value)
    if kind == "constant":
        return torch.full_like(value, 0.7)
    if kind == "one large" and value.numel():
        value.view(-1)[0] = 300.0
    return value
