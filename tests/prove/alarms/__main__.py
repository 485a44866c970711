"""Proves right programs at random, and counts those that are called wrong."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.prove.alarms.verdicts import Verdict, verdict_of


def main() -> int:
    """Print what came of every kind; 1 where there was an alarm or a crash."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200, help="so many; the default is %(default)s")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--seed", type=int, default=0, help="another one gives other programs")
    chosen = parser.parse_args()
    began, counts = time.monotonic(), Counter[Verdict]()
    for number in range(chosen.first, chosen.first + chosen.cases):
        verdict, text = verdict_of(number, chosen.seed)
        counts[verdict] += 1
        if verdict is not Verdict.PROVED:
            print(f"{verdict.value}: {text}", flush=True)
    print(", ".join(f"{verdict.value} {counts[verdict]}" for verdict in Verdict), f"{time.monotonic() - began:.0f} s")
    return int(counts[Verdict.ALARM] + counts[Verdict.CRASH] > 0)


if __name__ == "__main__":
    sys.exit(main())
