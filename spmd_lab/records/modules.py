"""The steps of an expansion by module; modules that run the same program stand together."""

from __future__ import annotations

from itertools import count, groupby
from typing import TYPE_CHECKING

from spmd_lab.records.collectives import tally_records
from spmd_lab.records.layouts import layout_record
from spmd_lab.records.steps import brief_record, step_record
from spmd_lab.show.module_tree import Module, module_tree, without_containers
from spmd_lab.show.value_records import BriefRecord, ModuleRecord, StepRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spmd_lab.expand.values import Collective, Step

__all__ = ["module_records"]

_ROWS, _STEPS, _MODULES, _QUIET = 80, 12, 50, 600
"""Up to so many steps that communicate, all of them unfold, in every module.

Of a program with more, whose modules are then all different, the first few unfold; what follows has a line each.
"""


def module_records(steps: Iterable[Step], pictures: bool = False) -> tuple[ModuleRecord, ...]:
    """The outermost modules with what they contain.

    Parameters
    ----------
    steps : iterable of Step
        The steps of operators, in order.
    pictures : bool
        Whether steps are to carry a picture.
    """
    listed = list(steps)
    position = {step.name: index for index, step in enumerate(listed)}
    root = module_tree(listed, lambda step: step.source.module if step.source else "")
    own = [Module("", root.items)] if root.items else []
    modules = [*without_containers(root), *own]
    return _Writer(position, pictures, is_large=_rows(modules) > _ROWS).folded(modules)


def _rows(modules: list[Module[Step]]) -> int:
    """How many steps that communicate are written where equal modules are written once."""
    firsts = [next(run) for _, run in groupby(modules, key=_signature)]
    return sum(sum(map(_is_loud, module.items)) + _rows(without_containers(module)) for module in firsts)


class _Writer:
    """Writes records of modules, and counts what it has written."""

    def __init__(self, position: dict[str, int], pictures: bool, is_large: bool) -> None:
        self.position = position
        self.pictures = pictures
        self.is_large = is_large
        self.steps, self.modules, self.quiet = count(), count(), count()

    def folded(self, modules: list[Module[Step]]) -> tuple[ModuleRecord, ...]:
        """Records of modules; neighbours that run the same program share one."""
        runs = [list(run) for _, run in groupby(modules, key=_signature)]
        return tuple(self.module([module.path for module in run], run[0]) for run in runs)

    def module(self, paths: list[str], module: Module[Step]) -> ModuleRecord:
        """One record; where very many are written, what a module contains has no rows of its own."""
        whole = self.is_large and next(self.modules) >= _MODULES
        everything = sorted(module.everything(), key=lambda step: self.position[step.name])
        own = everything if whole else module.items
        quiet = [step for step in own if not _is_loud(step)]
        records = [self.step(step) for step in own if _is_loud(step)]
        forward = [step for step in everything if step.phase == "forward" and step.outputs]
        last = forward[-1].outputs[0] if forward else None
        collectives: list[Collective] = [found for step in everything for found in step.collectives]
        return ModuleRecord(
            paths=tuple(paths),
            layout=None if last is None else layout_record(last),
            tallies=tally_records(collectives),
            sent_bytes=sum(found.sent_bytes_per_rank for found in collectives),
            steps=tuple(step for step in records if isinstance(step, StepRecord)),
            brief_steps=tuple(step for step in records if isinstance(step, BriefRecord)),
            quiet_steps=tuple(brief_record(step) for step in quiet if self.has_room()),
            quiet_count=len(quiet),
            children=() if whole else self.folded(without_containers(module)),
        )

    def step(self, step: Step) -> StepRecord | BriefRecord:
        """A step that unfolds; where very many are written, one line."""
        is_brief = self.is_large and next(self.steps) >= _STEPS
        return brief_record(step) if is_brief else step_record(step, picture=self.pictures)

    def has_room(self) -> bool:
        """Whether one more line for a step without communication is written."""
        return next(self.quiet) < _QUIET


def _is_loud(step: Step) -> bool:
    return bool(step.collectives) or step.fallback is not None


def _signature(module: Module[Step]) -> tuple[object, ...]:
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
        for step in module.items
    )
    return own, tuple((name, _signature(child)) for name, child in module.children.items())
