"""The steps of an expansion by module; modules that run the same program stand together."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from spmd_lab.records.collectives import tally_records
from spmd_lab.records.layouts import layout_record
from spmd_lab.records.steps import step_record
from spmd_lab.show.value_records import ModuleRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from spmd_lab.expand.values import Collective, Step
    from spmd_lab.show.value_records import StepRecord

__all__ = ["module_records"]


@dataclass
class _Module:
    """A module while its steps are gathered."""

    path: str
    steps: list[Step] = field(default_factory=list)
    children: dict[str, _Module] = field(default_factory=dict)

    def child(self, name: str) -> _Module:
        path = f"{self.path}.{name}" if self.path else name
        return self.children.setdefault(name, _Module(path))

    def all_steps(self) -> Iterator[Step]:
        yield from self.steps
        for child in self.children.values():
            yield from child.all_steps()


def module_records(steps: Iterable[Step], pictures: bool = False) -> tuple[ModuleRecord, ...]:
    """The outermost modules with what they contain.

    Parameters
    ----------
    steps : iterable of Step
        The steps of operators, in order.
    pictures : bool
        Whether steps are to carry a picture.
    """
    root = _Module("")
    position: dict[str, int] = {}
    for index, step in enumerate(steps):
        position[step.name] = index
        module = root
        for name in step.source.module.split(".") if step.source and step.source.module else ():
            module = module.child(name)
        module.steps.append(step)

    def record_of(step: Step) -> StepRecord:
        return step_record(step, graph=True, picture=pictures)

    own = [_Module("", root.steps)] if root.steps else []
    return _folded([*_without_containers(root), *own], position, record_of)


def _without_containers(module: _Module) -> list[_Module]:
    """The children of a module; a list of blocks, and what only wraps one child, give way to their own children."""
    found: list[_Module] = []
    for child in module.children.values():
        is_container = not child.steps and (len(child.children) == 1 or all(map(str.isdecimal, child.children)))
        found.extend(_without_containers(child) if is_container else [child])
    return found


def _folded(
    modules: list[_Module], position: dict[str, int], record_of: Callable[[Step], StepRecord]
) -> tuple[ModuleRecord, ...]:
    """Records of modules; neighbours that run the same program share one."""
    runs = [list(run) for _, run in groupby(modules, key=_signature)]
    return tuple(_record([module.path for module in run], run[0], position, record_of) for run in runs)


def _record(
    paths: list[str], module: _Module, position: dict[str, int], record_of: Callable[[Step], StepRecord]
) -> ModuleRecord:
    loud = [step for step in module.steps if _is_loud(step)]
    everything = sorted(module.all_steps(), key=lambda step: position[step.name])
    forward = [step for step in everything if step.phase == "forward" and step.outputs]
    last = forward[-1].outputs[0] if forward else None
    collectives: list[Collective] = [found for step in everything for found in step.collectives]
    return ModuleRecord(
        paths=tuple(paths),
        layout=None if last is None else layout_record(last),
        tallies=tally_records(collectives),
        steps=tuple(record_of(step) for step in loud),
        quiet_steps=len(module.steps) - len(loud),
        children=_folded(_without_containers(module), position, record_of),
    )


def _is_loud(step: Step) -> bool:
    return bool(step.collectives) or step.fallback is not None


def _signature(module: _Module) -> tuple[object, ...]:
    """Equal for modules that run the same program: operators, layouts and communication, but not names."""
    own = tuple(
        (
            step.op,
            step.phase,
            step.source and (step.source.file, step.source.line),
            tuple((operand.have, operand.need) for operand in step.operands),
            step.outputs,
            tuple((found.kind, found.axes, found.payload_bytes) for found in step.collectives),
            step.fallback,
        )
        for step in module.steps
    )
    return own, tuple((name, _signature(child)) for name, child in module.children.items())
