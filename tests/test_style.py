"""Style and types are tests: of the package, of the tests and of the notebooks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

CHECKS = {
    "ruff check": ["ruff", "check", "--no-cache", "--output-format=concise", "."],
    "ruff format": ["ruff", "format", "--no-cache", "--check", "."],
    "mypy": ["mypy", "--no-error-summary"],
}


@pytest.mark.parametrize("name", CHECKS)
def test_clean(name: str) -> None:
    done = subprocess.run([sys.executable, "-m", *CHECKS[name]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["ruff check", "ruff format"])
def test_the_check_can_fail(name: str, tmp_path: Path) -> None:
    """The configuration of the project finds fault with a bad file."""
    (tmp_path / "bad.py").write_text("def loud( ):\n    print( 'x' )\n")
    command = [sys.executable, "-m", *CHECKS[name][:-1], f"--config={ROOT / 'pyproject.toml'}", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr


def test_mypy_is_strict(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def loose(x):\n    return x\n")
    command = [sys.executable, "-m", "mypy", f"--config-file={ROOT / 'pyproject.toml'}", str(tmp_path / "bad.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "no-untyped-def" in done.stdout
