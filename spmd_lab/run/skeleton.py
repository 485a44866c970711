"""A user's module without its data: what is traced again and again, while ranks hold their shards alone."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from torch import nn

from spmd_lab.torch_internals.fakes import FakeTensorMode, fake_like
from spmd_lab.torch_internals.modules import copied_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch

__all__ = ["Skeleton", "skeleton_of"]


class Skeleton(NamedTuple):
    """A module like the user's that keeps none of its tensors alive, and the user's tensor behind each of its own.

    Parameters
    ----------
    module : nn.Module
        The same tree of modules; parameters and buffers are fake.
    data : mapping of int to torch.Tensor
        The user's tensors, by the ``id`` of those that stand for them.
    """

    module: nn.Module
    data: Mapping[int, torch.Tensor]

    def stands_for(self, values: Iterable[torch.Tensor]) -> bool:
        """Whether a trace of it reaches none of the user's parameters and buffers by another way, as by a method."""
        users = {id(tensor) for tensor in self.data.values()}
        return not any(id(value) in users for value in values)


def skeleton_of(module: nn.Module) -> Skeleton:
    """The skeleton of a module; what is on ``meta`` stays there.

    Examples
    --------
    >>> plain = nn.Linear(2, 3)
    >>> skeleton = skeleton_of(plain)
    >>> skeleton.module, skeleton.data[id(skeleton.module.weight)] is plain.weight
    (Linear(in_features=2, out_features=3, bias=True), True)
    """
    mode = FakeTensorMode()
    stand_ins: dict[int, torch.Tensor] = {}
    data: dict[int, torch.Tensor] = {}
    for tensor in chain(module.parameters(), module.buffers()):
        stand_in = tensor if tensor.is_meta else fake_like(mode, tensor, tensor.device, requires_grad=False)
        if isinstance(tensor, nn.Parameter):
            stand_in = nn.Parameter(stand_in, tensor.requires_grad)
        stand_ins[id(tensor)] = stand_in.requires_grad_(tensor.requires_grad)
        data[id(stand_ins[id(tensor)])] = tensor
    return Skeleton(copied_tree(module, stand_ins), data)
