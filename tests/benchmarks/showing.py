"""How long a large expansion takes to be seen, and how large it is then.

``python -m tests.benchmarks.showing`` prints the table, of a GPT whose expansion has more than 1,800 steps. There is no
peer that does the same work: each line has the limit that we hold ourselves to. The first card is the first thing that
a fresh process shows.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import spmd_lab as sl
from spmd_lab.demo import GPT, MEGATRON

if TYPE_CHECKING:
    from collections.abc import Callable

LAYERS = 14


def timed(make: Callable[[], str]) -> tuple[float, str]:
    """How long it takes, in seconds, and what it makes."""
    start = time.perf_counter()
    made = make()
    return time.perf_counter() - start, made


def exported(expansion: sl.Expansion) -> str:
    """The page of its film."""
    with tempfile.TemporaryDirectory() as folder:
        return expansion.film().to_html(Path(folder) / "film.html").read_text()


def told(what: str, seconds: float, made: str, most_seconds: float, most_bytes: int) -> str:
    """A line of the table."""
    size = len(made.encode())
    return f"{what:<28} {seconds:7.3f} s (at most {most_seconds})  {size:>9,} B (at most {most_bytes:,})"


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    model, tokens = GPT(LAYERS, 64, 4, 256, 32), torch.zeros(8, 32, dtype=torch.long)
    expansion = sl.spmd_expand(model, tokens, mesh=sl.Mesh(dp=2, tp=4), batch="dp", params=MEGATRON)
    program = expansion.program
    print(f"{len(expansion.steps):,} steps", flush=True)
    print(told("card, first in a process", *timed(expansion._repr_html_), 0.3, 400_000), flush=True)
    print(told("card, again", *timed(expansion._repr_html_), 0.3, 400_000), flush=True)
    print(told("draw(), folded", *timed(lambda: program.draw().svg), 1.0, 400_000), flush=True)
    print(told("film, exported", *timed(lambda: exported(expansion)), 30.0, 3_000_000), flush=True)


if __name__ == "__main__":
    main()
