"""Trees of modules: a copy with other tensors, which shares nothing that a call of it could change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

__all__ = ["TiedModule", "adopt_tree", "copied_tree", "get_tensor", "put_tensor", "with_tensors"]


class TiedModule(nn.Module):
    """A module whose tied tensors stay tied when all its tensors change, as in ``to_empty``."""

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        named = [
            *self.named_parameters(remove_duplicate=False),
            *self.named_buffers(remove_duplicate=False),
        ]
        first = {id(tensor): name for name, tensor in reversed(named)}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, tensor in named:
            if first[id(tensor)] != name:
                put_tensor(self, name, get_tensor(self, first[id(tensor)]))
        return self


def adopt_tree(root: nn.Module, module: nn.Module, tensors: Mapping[int, torch.Tensor]) -> None:
    """Give ``root`` the parameters, the buffers and the children of a module, with other tensors in them.

    The children are copies of the same classes with the same names; what is shared between modules stays shared.

    Parameters
    ----------
    root : nn.Module
        What takes them on; it has none of its own.
    module : nn.Module
        Whose they are; it stays as it is.
    tensors : mapping of int to torch.Tensor
        The new tensor for each old one, by ``id``.
    """
    copies: dict[int, nn.Module] = {id(module): root}
    _exchange(root, module, tensors, copies)
    root.training = module.training


def copied_tree(module: nn.Module, tensors: Mapping[int, torch.Tensor]) -> nn.Module:
    """A copy of a tree of modules, with other tensors in it as `adopt_tree` puts them."""
    return _copy(module, tensors, {})


def _copy(module: nn.Module, tensors: Mapping[int, torch.Tensor], copies: dict[int, nn.Module]) -> nn.Module:
    if id(module) not in copies:
        new = type(module).__new__(type(module))
        vars(new).update(vars(module))
        copies[id(module)] = new
        _exchange(new, module, tensors, copies)
    return copies[id(module)]


def _exchange(
    new: nn.Module, module: nn.Module, tensors: Mapping[int, torch.Tensor], copies: dict[int, nn.Module]
) -> None:
    of_parameters = {
        name: None if tensor is None else tensors[id(tensor)] for name, tensor in module._parameters.items()
    }
    of_buffers = {name: None if tensor is None else tensors[id(tensor)] for name, tensor in module._buffers.items()}
    of_children = {
        name: None if child is None else _copy(child, tensors, copies) for name, child in module._modules.items()
    }
    vars(new).update(
        _parameters=of_parameters,
        _buffers=of_buffers,
        _modules=of_children,
        _non_persistent_buffers_set=set(module._non_persistent_buffers_set),
    )


def with_tensors(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """A module like another, with other tensors of its own under the same names; its children are the same."""
    new = type(module).__new__(type(module))
    vars(new).update(vars(module))
    vars(new).update(
        _parameters={name: tensors.get(name) for name in module._parameters},
        _buffers={name: tensors.get(name) for name in module._buffers},
    )
    return new


def put_tensor(root: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Put a parameter or a buffer where a dotted name says, with plain modules on the way where there are none."""
    *path, leaf = name.split(".")
    for part in path:
        if part not in root._modules:
            root._modules[part] = nn.Module()
        child = root._modules[part]
        assert child is not None
        root = child
    if isinstance(tensor, nn.Parameter):
        root._parameters[leaf] = tensor
    else:
        root._buffers[leaf] = tensor


def get_tensor(root: nn.Module, name: str) -> torch.Tensor:
    """The parameter or buffer of a dotted name, whatever else the modules have under these names."""
    *path, leaf = name.split(".")
    for part in path:
        child = root._modules[part]
        assert child is not None
        root = child
    tensor = root._parameters.get(leaf)
    return root._buffers[leaf] if tensor is None else tensor  # type: ignore[return-value]
