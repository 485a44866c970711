"""The tensors that a program reads, each with a name of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from spmd_lab.errors import TraceError
from spmd_lab.trace.trees import join

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spmd_lab.trace.trees import Leaf
    from spmd_lab.trace.values import InputRole

__all__ = ["Slot", "Slots", "check_module", "slots_of"]


@dataclass(frozen=True)
class Slot:
    """One tensor that the program reads: a parameter, a buffer, an argument, or something closed over.

    ``key`` is where it stands in the holder of all modules, ``module`` which of these that is, and ``owner`` the class
    of the very module that owns it; None and -1 and nothing for what is in no module.
    """

    name: str
    role: InputRole
    value: torch.Tensor
    aliases: tuple[str, ...] = ()
    closure: bool = False
    key: str | None = None
    module: int = -1
    owner: str = ""

    @property
    def is_argument(self) -> bool:
        """Whether the caller passes it."""
        return self.role == "input" and not self.closure


def slots_of(prefix: str, module: nn.Module, index: int) -> Iterator[Slot]:
    """The parameters and buffers of one module, tied ones under each of their names."""
    found: list[tuple[InputRole, str, torch.Tensor]] = [
        *(("parameter", name, tensor) for name, tensor in module.named_parameters(remove_duplicate=False)),
        *(("buffer", name, tensor) for name, tensor in module.named_buffers(remove_duplicate=False)),
    ]
    for role, name, tensor in found:
        owner = _class_of(module.get_submodule(name.rpartition(".")[0]))
        yield Slot(join(prefix, name), role, tensor, (), bool(prefix), f"m{index}.{name}", index, owner)


def _class_of(module: nn.Module) -> str:
    """The name of a module's class, or of the class of ``torch.nn`` that it derives from."""
    for kind in type(module).__mro__[:-2]:
        if kind is not nn.Module and kind.__module__.startswith("torch.nn."):
            return kind.__name__
    return type(module).__name__


class Slots:
    """Collects slots: one a tensor, each with a name of its own."""

    def __init__(self) -> None:
        self._slots: list[Slot] = []
        self._by_tensor: dict[int, int] = {}
        self._names: set[str] = set()

    def add(self, slot: Slot) -> None:
        """A tensor that the program reaches by itself; a second name of one is an alias."""
        _check(slot.name, slot.value)
        known = self._by_tensor.get(id(slot.value))
        if known is None:
            self._by_tensor[id(slot.value)] = len(self._slots)
            self._slots.append(replace(slot, name=self._unique(slot.name)))
        elif slot.key is not None:
            first = self._slots[known]
            self._slots[known] = replace(first, aliases=(*first.aliases, self._unique(slot.name)))

    def pass_in(self, leaf: Leaf) -> None:
        """A tensor that is passed; it stands for itself, even when it is passed twice."""
        _check(leaf.name, leaf.value)
        self._by_tensor.setdefault(id(leaf.value), len(self._slots))
        self._slots.append(Slot(self._unique(leaf.name), "input", leaf.value))

    def _unique(self, name: str) -> str:
        candidate, count = name, 0
        while candidate in self._names:
            count += 1
            candidate = f"{name}_{count}"
        self._names.add(candidate)
        return candidate

    def in_order(self) -> tuple[Slot, ...]:
        """Parameters, buffers, arguments, and then what is closed over."""
        order = {"parameter": 0, "buffer": 1, "input": 2}
        return tuple(sorted(self._slots, key=lambda slot: (order[slot.role], slot.role == "input" and slot.closure)))


def check_module(name: str, module: nn.Module) -> None:
    """Refuse a module that hides its lines.

    Raises
    ------
    TraceError
        If a part of it is scripted.
    """
    for path, child in module.named_modules(prefix=name):
        if isinstance(child, torch.jit.ScriptModule):
            raise TraceError(
                f"{path or 'the module'!r} is scripted: its lines are hidden from Python",
                argument=path or "fn",
                hint="the module as it was before torch.jit.script",
            )


def _check(name: str, value: torch.Tensor) -> None:
    """Refuse what has no plain shape."""
    from torch.distributed.tensor import DTensor

    if isinstance(value, DTensor):
        raise TraceError(
            f"{name!r} is a DTensor: the program of one device has plain tensors",
            argument=name,
            hint="trace the module as it was before it was distributed, or a copy on meta",
        )
    if isinstance(value, (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)):
        raise TraceError(
            f"{name!r} has no shape yet",
            argument=name,
            hint="run the module once, so that lazy layers know their sizes",
        )
    if value.layout != torch.strided or value.is_quantized:
        raise TraceError(
            f"{name!r} is {value.layout}, not a dense tensor", argument=name, hint="a dense tensor (x.to_dense())"
        )
