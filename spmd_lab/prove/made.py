"""What a traced operator makes of its operands, and what it makes of the same when they are shaken."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from spmd_lab.local_graph import whatever_the_strides
from spmd_lab.prove.pieces import Whole
from spmd_lab.streams import Stream, filling_strides

if TYPE_CHECKING:
    from spmd_lab.prove.tolerance import Shaker

__all__ = ["Made", "value_of"]

_MANY, _FEW = 1000, 10
"""So many elements say from one sample how much they usually move; so few, and fewer, may all stand still by chance."""


@dataclass
class Made:
    """What a traced operator makes of its operands; made again from shaken ones when somebody asks for the noise.

    An operator that draws random numbers goes on in the stream, and draws the same again from shaken operands.
    """

    node: fx.Node
    operands: dict[fx.Node, Any]
    shaker: Shaker
    stream: Stream | None = None
    value: Any = None
    _samples: list[Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        values = {node: value_of(held) for node, held in self.operands.items()}
        if self.stream is None:
            self.value = self._run(values)
        else:
            before = self.stream.again()
            with self.stream:
                self.value = self._run(values)
            self.stream = before

    def _run(self, values: dict[fx.Node, Any]) -> Any:
        if self.stream is not None:
            values = {node: _strided_as(node, value) for node, value in values.items()}
        target: Any = whatever_the_strides(self.node.target)  # type: ignore[arg-type]
        args, kwargs = fx.map_arg((self.node.args, self.node.kwargs), values.__getitem__)
        return target(*args, **kwargs)

    @property
    def samples(self) -> list[Any]:
        """What comes out of shaken operands, a few times over."""
        if self._samples is None:
            count = self.value.numel() if isinstance(self.value, torch.Tensor) else _FEW
            times = 1 if count >= _MANY else 2 if count >= _FEW else 4
            self._samples = [found for _ in range(times) if (found := self._shaken()) is not None]
        return self._samples

    def _shaken(self) -> Any:
        values = {
            node: self.shaker(held.value, held.scale) if isinstance(held, Whole) else held
            for node, held in self.operands.items()
        }
        try:
            with self.stream.again() if self.stream is not None else nullcontext():
                return self._run(values)
        except RuntimeError:  # an operator may refuse values that are no longer in its domain
            return None


def _strided_as(node: fx.Node, value: Any) -> Any:
    """A tensor laid out as it was traced: strides decide in which order random numbers fill it."""
    traced = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not isinstance(traced, torch.Tensor) or not value.numel():
        return value
    strides = filling_strides(traced.shape, traced.stride())
    return torch.empty_strided(traced.shape, strides, dtype=value.dtype, device=value.device).copy_(value)


def value_of(held: Any) -> Any:
    """The tensor itself, of one that was put together."""
    return held.value if isinstance(held, Whole) else held
