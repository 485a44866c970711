"""``python -m tests.coverage``: the table of torch's operators."""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import sys
from pathlib import Path

import torch

from tests.coverage.known import remember
from tests.coverage.operators import operators
from tests.coverage.outcome import OperatorOutcome
from tests.coverage.pool import run_all
from tests.coverage.summary import table

PAGE = Path(__file__).with_name("README.md")

INTRODUCTION = """# Coverage of torch's operators

Every entry of `op_db`, torch's own table of operators with samples of their arguments, is traced, expanded and proved:
forward, and gradients where the operator has them. Written by `python -m tests.coverage --page`; do not edit.

{date}, torch {torch}, on CPU. At most {samples} samples of each entry (half of them the first ones, half spread over
the rest; none above 20,000 elements), in float32, or where an entry does not take it in int64, complex64, bool or
float16. Each sample in up to seven layouts: on `Mesh(x=4)` every tensor divided on dim 0, on its last dim, whole, and
pending (a sum of uneven pieces); on `Mesh(x=2, y=2)` divided on dim 0 and the last dim, twice on dim 0, and pending and
divided. Most samples have dims of 5 or less, so most shards are uneven, and some empty. An entry counts as its worst
case. What `verify` finds equal is compared once more, without it, with eager PyTorch. Uninitialised memory (`empty` and
its like) is compared by shape.{earlier}
"""

EARLIER = """

Put together from two runs or more: what was equal, with nothing gathered, was not repeated after the code changed.
"""


def main(arguments: list[str] | None = None) -> int:
    """Run, print the table, and say by the exit status whether anything is wrong or crashed."""
    options = _options(arguments)
    earlier = _read(options.again) if options.again else {}
    names = _chosen(options, earlier)
    found = dict(earlier)
    for number, outcome in enumerate(
        run_all(names, options.samples, options.quick, options.jobs, options.timeout), start=1
    ):
        found[outcome.name] = outcome
        said = f"[{number}/{len(names)}] {outcome.kind:<9} {outcome.seconds:5.1f} s  {outcome.name}"
        print(said if outcome.kind == "equal" else f"{said}  {outcome.reason}", file=sys.stderr, flush=True)
    outcomes = [found[name] for name in sorted(found)]
    text = table(outcomes)
    if options.json:
        Path(options.json).write_text("".join(json.dumps(each.as_record()) + "\n" for each in outcomes))
    if options.page:
        today = datetime.datetime.now(datetime.UTC).date()
        version = torch.__version__.partition("+")[0]
        earlier_runs = EARLIER.rstrip() if options.again else ""
        head = INTRODUCTION.format(date=today, torch=version, samples=options.samples, earlier=earlier_runs)
        PAGE.write_text(f"{head}\n{text}")
        remember(outcomes)
    if options.out:
        Path(options.out).write_text(text)
    print(text)
    return int(any(each.kind in ("wrong", "crashed") for each in outcomes))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.coverage", description=__doc__)
    parser.add_argument("--ops", nargs="+", metavar="GLOB", help="only these: names of torch's table, with * and ?")
    parser.add_argument("--shard", metavar="I/N", help="every Nth, from the Ith on, counted from 1")
    parser.add_argument("--samples", type=int, default=5, help="the most samples of each (default: 5)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: 2)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for one operator (default: 60)")
    parser.add_argument("--quick", action="store_true", help="only on the mesh of one axis")
    parser.add_argument(
        "--again", metavar="JSON", help="take this earlier run, and repeat what is not equal, or is gathered, in it"
    )
    parser.add_argument("--out", metavar="FILE", help="write the table there")
    parser.add_argument("--json", metavar="FILE", help="write every case there, one operator a line")
    parser.add_argument(
        "--page", action="store_true", help=f"write the table to {PAGE.name} beside the tests, and which are equal"
    )
    options = parser.parse_args(arguments)
    if options.page and not options.again and (options.ops or options.shard or options.quick):
        parser.error("--page is for a full run, or one that completes a full run by --again")
    return options


def _chosen(options: argparse.Namespace, earlier: dict[str, OperatorOutcome]) -> list[str]:
    names = sorted(operators())
    if options.ops:
        names = [name for name in names if any(fnmatch.fnmatchcase(name, glob) for glob in options.ops)]
    elif earlier:
        names = [name for name in names if name not in earlier or not _is_settled(earlier[name])]
    if options.shard:
        index, _, count = options.shard.partition("/")
        names = names[int(index) - 1 :: int(count)]
    return names


def _is_settled(outcome: OperatorOutcome) -> bool:
    return outcome.kind in ("equal", "no sample") and not outcome.fallbacks


def _read(path: str) -> dict[str, OperatorOutcome]:
    records = [json.loads(line) for line in Path(path).read_text().splitlines()]
    return {record["name"]: OperatorOutcome.from_record(record) for record in records}


if __name__ == "__main__":
    sys.exit(main())
