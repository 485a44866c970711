"""The command line: ``python -m spmd_lab demo`` and ``python -m spmd_lab run``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from spmd_lab.demo import run_demo
from spmd_lab.errors import RankError, SpmdLabError
from spmd_lab.mesh import Mesh
from spmd_lab.run.file_run import FileRun, run_file


def main(argv: list[str] | None = None) -> int:
    """Run a command; return its exit status: 0, 1 where something came out wrong, 2 where it was refused."""
    given = _parser().parse_args(argv)
    try:
        if given.command == "run":
            return _run(given)
        report = run_demo(Mesh.parse(given.mesh), given.page)
    except SpmdLabError as error:
        rank = os.environ.get("RANK")
        print(f"rank {rank}: {error}" if rank and given.command == "run" else error, file=sys.stderr, flush=True)
        return 1 if isinstance(error, RankError) else 2
    return 0 if report.ok else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m spmd_lab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="expand a small GPT over a mesh, prove it equal, and write a page")
    demo.add_argument("--mesh", default="dp=2,tp=4", help="axes dp and tp with their sizes (default: %(default)s)")
    demo.add_argument("--page", type=Path, default=Path("spmd_lab_demo.html"), help="the page (default: %(default)s)")
    run = commands.add_parser(
        "run", help="run a saved program: on the ranks of torchrun or another launcher, or on ranks started here"
    )
    run.add_argument("program", type=Path, help="what program.save(path) wrote")
    run.add_argument("--inputs", type=Path, help="what torch.save wrote: whole tensors, in a dict by name or in order")
    run.add_argument("--out", type=Path, help="where the whole outputs go, in a dict by name")
    run.add_argument("--mesh", help="the mesh that you count on, as dp=2,tp=4; another one is refused")
    run.add_argument("--device", choices=("cpu", "cuda"), help="by default cuda where there is a GPU")
    run.add_argument("--timeout", type=float, default=60.0, help="seconds that ranks wait for others (%(default)s)")
    return parser


def _run(given: argparse.Namespace) -> int:
    report = run_file(FileRun(given.program, given.inputs, given.out, given.mesh, given.device, given.timeout))
    if report is not None:
        print(report, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
