"""What a stranger meets first: the metadata, the environment, the README's commands, the top level."""

from __future__ import annotations

import doctest
import importlib.metadata
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
README = (ROOT / "README.md").read_text()
TOP_LEVEL = {"README.md", "environment.yml", "notebooks", "pyproject.toml", "spmd_lab", "tests"}

# Spelled in pieces, so that this file does not hold what it looks for.
MACHINE_PATHS = ["/" + folder + "/" for folder in ("work", "root", "home", "Users", "opt/wheels", "opt/pypi")]
REGISTRY_HOSTS = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("download", "pytorch", "org"),
        ("registry", "npmjs"),
        ("deb", "debian", "org"),
        ("conda", "anaconda", "org"),
        ("huggingface", "co"),
    )
]


def git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split("\0") if name]


def tracked() -> list[str]:
    return [name for name in git("ls-files", "-z") if (ROOT / name).is_file()]


def requirements() -> dict[str, Requirement]:
    """Every requirement of the project and its extras; an equal name must have equal bounds."""
    found: dict[str, Requirement] = {}
    for text in [*PROJECT["dependencies"], *(r for extra in PROJECT["optional-dependencies"].values() for r in extra)]:
        requirement = Requirement(text)
        assert found.setdefault(requirement.name, requirement) == requirement, f"two bounds for {requirement.name}"
    return found


def readme_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_names_version_licence_and_python() -> None:
    assert PROJECT["name"] == "spmd_lab"
    assert PROJECT["license"] == "BSD-3-Clause"
    assert PROJECT["requires-python"] == ">=3.11"
    assert importlib.metadata.version("spmd_lab") == PROJECT["version"]
    assert "BSD-3-Clause" in README


def test_the_wheel_holds_the_package_alone() -> None:
    assert PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"] == {"packages": ["spmd_lab"]}


def test_bounds_of_torch() -> None:
    torch = requirements()["torch"].specifier
    assert [version for version in ("2.12.1", "2.13.0", "2.14.1", "2.15.0", "2.16.0") if version in torch] == [
        "2.13.0",
        "2.14.1",
        "2.15.0",
    ]


def test_every_requirement_is_bounded_below() -> None:
    loose = [name for name, each in requirements().items() if not any(s.operator == ">=" for s in each.specifier)]
    assert not loose


def test_environment_is_in_step() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["name"] == PROJECT["name"]
    plain = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert f"python {PROJECT['requires-python']}" in plain
    assert pip[-1] == "-e ."
    listed = [Requirement(text) for text in pip[:-1]]
    assert sorted(map(str, listed)) == sorted(map(str, requirements().values()))


def test_top_level_is_tidy() -> None:
    unhidden = {name.split("/")[0] for name in tracked() if not name.startswith(".")}
    assert unhidden == TOP_LEVEL


def test_ci_runs_the_commands_of_the_readme() -> None:
    demo, tests = (block.strip() for block in readme_blocks("bash"))
    lines = [line.strip() for line in (ROOT / ".ci/run").read_text().splitlines()]
    assert f"( {demo} )" in lines
    assert lines[-1] == tests
    assert demo.endswith("python -m spmd_lab demo")
    assert tests.endswith("&& pytest")
    for command in (demo, tests):  # torch by version first: a bare "torch" may bring a build of several GB
        assert "pip install torch==2.13.0 -e " in command


def test_ci_script_is_sound() -> None:
    script = ROOT / ".ci/run"
    assert script.stat().st_mode & 0o111, "not executable"
    assert "set -euo pipefail" in script.read_text()
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_files_speak_of_no_machine() -> None:
    found = [
        f"{name}: {word}"
        for name in tracked()
        for word in (*MACHINE_PATHS, *REGISTRY_HOSTS)
        if word in (ROOT / name).read_text(encoding="utf-8", errors="ignore")
    ]
    assert not found


@pytest.mark.parametrize(
    "ignored", [".venv/bin/python", "spmd_lab/__pycache__/mesh.pyc", ".hypothesis/x", "dist/x.whl"]
)
def test_what_is_made_is_ignored(ignored: str) -> None:
    assert git("check-ignore", ignored) == [f"{ignored}\n"]


def test_the_examples_of_the_readme() -> None:
    results = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert results.attempted >= 4
    assert results.failed == 0


def test_the_story_of_the_readme() -> None:
    story = next(block for block in readme_blocks("python") if "sl.rebuild" in block)
    names: dict[str, object] = {"__name__": "story"}
    exec(compile(story, str(ROOT / "README.md"), "exec"), names)
    assert names["report"].ok
