"""The command line: ``python -m spmd_lab demo``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from spmd_lab.demo import run_demo
from spmd_lab.errors import SpmdLabError
from spmd_lab.mesh import Mesh


def main(argv: list[str] | None = None) -> int:
    """Run a command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m spmd_lab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="expand a small GPT over a mesh, prove it equal, and write a page")
    demo.add_argument("--mesh", default="dp=2,tp=4", help="axes dp and tp with their sizes (default: %(default)s)")
    demo.add_argument("--page", type=Path, default=Path("spmd_lab_demo.html"), help="the page (default: %(default)s)")
    given = parser.parse_args(argv)
    try:
        report = run_demo(Mesh.parse(given.mesh), given.page)
    except SpmdLabError as error:
        print(error, file=sys.stderr)
        return 2
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
