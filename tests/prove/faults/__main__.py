"""Breaks every specimen in every way, and prints what the proof makes of it."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter

from tests.prove.faults.bank import KINDS, faults_of
from tests.prove.faults.outcome import Outcome, outcome_of
from tests.prove.specimens import SPECIMENS


def main() -> int:
    """Print a table by kind; 1 where a fault passed unseen or another step was named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=10, help="of one kind in one specimen; the default is %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of which ones these are")
    parser.add_argument("--kind", choices=KINDS, nargs="*", default=list(KINDS))
    parser.add_argument("--specimen", choices=SPECIMENS, nargs="*", default=list(SPECIMENS))
    chosen = parser.parse_args()
    draw, began = random.Random(chosen.seed), time.monotonic()
    counts: dict[str, Counter[Outcome]] = {kind: Counter() for kind in chosen.kind}
    for kind in chosen.kind:
        for specimen in chosen.specimen:
            found = faults_of(specimen, kind)
            for fault in draw.sample(found, min(chosen.most, len(found))):
                outcome = outcome_of(fault)
                counts[kind][outcome] += 1
                if outcome in (Outcome.OTHER, Outcome.UNSEEN):
                    print(f"{outcome.value}: {fault}", flush=True)
    print(table(counts))
    print(f"{time.monotonic() - began:.0f} s")
    total = sum(counts.values(), Counter())
    return int(total[Outcome.OTHER] + total[Outcome.UNSEEN] > 0)


def table(counts: dict[str, Counter[Outcome]]) -> str:
    """One line a kind: all faults, those that changed something, and what was said of these."""
    columns = (Outcome.NAMED, Outcome.OTHER, Outcome.UNSEEN)
    rows = [["kind", "faults", "that change something", *(each.value for each in columns)]]
    for kind, count in {**counts, "all": sum(counts.values(), Counter())}.items():
        changed = sum(count[each] for each in columns)
        rows.append([kind, *map(str, (count.total(), changed, *(count[each] for each in columns)))])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if cell is row[0] else cell.rjust(width) for cell, width in zip(row, widths, strict=True)
        )
        for row in rows
    )


if __name__ == "__main__":
    sys.exit(main())
