"""All kinds of mistakes, made in all specimens."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.prove.faults import labels, operators, reductions, shards
from tests.prove.specimens import SPECIMENS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import spmd_lab as sl
    from tests.prove.faults.places import Mistake

KINDS: dict[str, Callable[[sl.Program], Iterator[Mistake]]] = {
    find.__name__.replace("_", " "): find
    for find in (
        reductions.dropped,
        reductions.doubled,
        reductions.reduced_early,
        reductions.wrong_kind,
        reductions.wrong_axis,
        reductions.early_relu,
        shards.wrong_dim,
        shards.gathered_in_another_order,
        shards.wrong_offset,
        shards.stale,
        shards.swapped_ranks,
        shards.swapped_shards,
        operators.wrong_number,
        operators.unmasked,
        operators.swapped_operands,
        operators.scaled,
        labels.mislabelled_value,
        labels.mislabelled_operand,
        labels.mislabelled_output,
    )
}


@dataclass(frozen=True)
class Fault:
    """A mistake of a kind, in a specimen."""

    specimen: str
    kind: str
    mistake: Mistake

    @property
    def program(self) -> sl.Program:
        """The right program."""
        return SPECIMENS[self.specimen]()

    @property
    def broken(self) -> sl.Program:
        """The program with the mistake."""
        return self.mistake.make(self.program)

    def __str__(self) -> str:
        return f"{self.specimen}: {self.kind} in {self.mistake.step}: {self.mistake.where}"


def faults_of(specimen: str, kind: str) -> list[Fault]:
    """Every way to make one kind of mistake in one specimen."""
    return [Fault(specimen, kind, mistake) for mistake in KINDS[kind](SPECIMENS[specimen]())]


def sampled(most_of_kind: int, seed: int = 0) -> list[Fault]:
    """So many faults of each kind, where there are, from as many specimens as have it."""
    chosen = []
    draw = random.Random(seed)
    for kind in KINDS:
        found = [faults_of(specimen, kind) for specimen in SPECIMENS]
        for each in found:
            draw.shuffle(each)
        draw.shuffle(found)
        turns = [each[turn] for turn in range(most_of_kind) for each in found if turn < len(each)]
        chosen += turns[:most_of_kind]
    return chosen
