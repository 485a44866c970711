"""The user's program as one function of a flat list of tensors."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from spmd_lab.trace.arguments import Arguments, bind, name_of
from spmd_lab.trace.closures import Reached, reachable
from spmd_lab.trace.refusals import check_loss
from spmd_lab.trace.slots import Slot, Slots, check_module, slots_of
from spmd_lab.trace.trees import Leaf, Tree, flatten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


__all__ = ["Results", "UserProgram", "gather"]


@dataclass(frozen=True)
class Results:
    """What one run of the program gave: its loss, if it has one, and what it returned, taken apart."""

    loss: torch.Tensor | None
    returned: Tree

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """What is in the returned value."""
        return self.returned.leaves

    def tensors(self, exchanged: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        """The loss, if there is one, and the tensors among the leaves, closed-over ones exchanged."""
        leaves = [leaf.value for leaf in self.leaves if isinstance(leaf.value, torch.Tensor)]
        return [exchanged(tensor) for tensor in ([self.loss] if self.loss is not None else []) + leaves]


@dataclass(frozen=True, eq=False)
class UserProgram:
    """A module or a function, its loss, and every tensor that they read, in the order of the flat list.

    Parameters
    ----------
    fn, loss : callable
        The user's.
    arguments : Arguments
        What ``fn`` is called with.
    modules : tuple of (str, Module)
        The modules that it reaches, with the prefix of their names.
    slots : tuple of Slot
        Parameters, buffers, arguments, things closed over.
    """

    fn: Callable[..., Any]
    loss: Callable[..., Any] | None
    arguments: Arguments
    modules: tuple[tuple[str, nn.Module], ...]
    slots: tuple[Slot, ...]
    _holder: _Holder = field(repr=False)

    @property
    def name(self) -> str:
        """The class of the module, or the name of the function."""
        return name_of(self.fn)

    def module_paths(self) -> dict[int, str]:
        """The dotted path of every module, by ``id``."""
        paths = {id(self._holder): ""}
        for prefix, module in self.modules:
            for name, child in module.named_modules(prefix=prefix):
                paths.setdefault(id(child), name)
        return paths

    def exchange(self, flat: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        """What stands for each tensor of the user's, by ``id``."""
        pairs = sorted(zip(self.slots, flat, strict=True), key=lambda pair: not pair[0].is_argument)
        return {id(slot.value): tensor for slot, tensor in pairs}

    def run(self, flat: Sequence[torch.Tensor], around: Callable[[], Any]) -> Results:
        """Run the program on other tensors, one per slot, inside the context that ``around`` makes.

        Buffers that the program assigns to are written into their tensors, as in-place updates are. The user's
        modules are left as they were.
        """
        named = {slot.key: tensor for slot, tensor in zip(self.slots, flat, strict=True) if slot.key is not None}
        passed = [tensor for slot, tensor in zip(self.slots, flat, strict=True) if slot.is_argument]

        def call() -> Results:
            args, kwargs = self.arguments.with_tensors(passed)
            with around():
                out = self.fn(*args, **kwargs)
                loss = self.loss(out) if self.loss is not None else None
                if self.loss is not None:
                    check_loss(loss)
                self._write_back(named)
            return Results(loss, flatten(out, "out"))

        with _unchanged(self._holder):
            results: Results = torch.func.functional_call(self._holder, named, (call,))
        return results

    def _write_back(self, named: dict[str, torch.Tensor]) -> None:
        for key, tensor in named.items():
            path, _, attribute = key.rpartition(".")
            now = getattr(self._holder.get_submodule(path), attribute, tensor)
            if now is not tensor and isinstance(now, torch.Tensor):
                tensor.copy_(now)


class _Holder(nn.Module):
    """Holds all modules of a program, so that one functional call exchanges the tensors of all."""

    def forward(self, call: Callable[[], Results]) -> Results:
        return call()


@contextmanager
def _unchanged(holder: nn.Module) -> Iterator[None]:
    """Give every module back the attributes it had, and its lists and dicts what was in them."""
    before = [(module, dict(vars(module))) for module in holder.modules()]
    contents = [
        (value, value.copy())
        for _, attributes in before
        for value in attributes.values()
        if type(value) in (dict, list)
    ]
    try:
        yield
    finally:
        for module, attributes in before:
            _restore(vars(module), attributes)
        for container, items in contents:
            _restore(container, items)


def _restore(container: Any, items: Any) -> None:
    """Put back the very objects that were in a dict or list."""
    if isinstance(container, list):
        if len(container) != len(items) or any(new is not old for new, old in zip(container, items, strict=True)):
            container[:] = items
    elif container.keys() != items.keys() or any(container[key] is not value for key, value in items.items()):
        container.clear()
        container.update(items)


def gather(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    loss: Callable[..., Any] | None,
    found: Sequence[Reached] = (),
) -> UserProgram:
    """Find every tensor that a program reads, and name it.

    Parameters
    ----------
    found : sequence of (str, tensor or module)
        Further things that the program is known to reach.
    """
    arguments = bind(fn, args, kwargs)
    reached = [*reachable(fn, loss), *found]
    modules = _outermost([(name, value) for name, value in reached if isinstance(value, nn.Module)])
    holder = _Holder()
    slots = Slots()
    for index, (prefix, module) in enumerate(modules):
        check_module(prefix, module)
        holder.add_module(f"m{index}", module)
        for slot in slots_of(prefix, module, index):
            slots.add(slot)
    for leaf in arguments.tensors:
        slots.pass_in(leaf)
    for name, value in reached:
        if isinstance(value, torch.Tensor):
            slots.add(Slot(name, "parameter" if isinstance(value, nn.Parameter) else "input", value, closure=True))
    return UserProgram(fn, loss, arguments, tuple(modules), slots.in_order(), holder)


def _outermost(found: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """The modules that are not inside another of them."""
    inner = {id(child) for _, module in found for child in module.modules() if child is not module}
    kept: dict[int, tuple[str, nn.Module]] = {}
    for name, module in found:
        if id(module) not in inner:
            kept.setdefault(id(module), (name, module))
    return list(kept.values())
