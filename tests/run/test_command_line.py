"""``python -m spmd_lab run``: alone, under torchrun, and on two machines of which one is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import spmd_lab as sl
from spmd_lab.__main__ import main
from tests.run import odd_operators
from tests.run.saved_cases import program_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved program for two ranks, other programs, and inputs by name."""
    folder = tmp_path_factory.mktemp("files")
    program = program_of(sl.Mesh(tp=2))
    program.save(folder / "reader.spmd")
    program_of(sl.Mesh(tp=4)).save(folder / "four.spmd")
    traced = program.expansion.traced
    inputs = {each.name: value.detach() for each, value in zip(traced.inputs, traced.values, strict=True)}
    torch.save(inputs, folder / "inputs.pt")
    torch.save(inputs | {"table.weight": inputs["table.weight"] + 1}, folder / "others.pt")
    return folder


def expected() -> dict[str, Any]:
    """What one device makes of the same."""
    traced = program_of(sl.Mesh(tp=2)).expansion.traced
    values = traced.reference.run([value.detach().requires_grad_(value.requires_grad) for value in traced.values])
    return dict(zip([each.name for each in traced.outputs], values, strict=True))


def run(*command: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, cwd=cwd, env=kept, capture_output=True, text=True, timeout=120, check=False)


def check_outputs(path: Path) -> None:
    found, wanted = torch.load(path, weights_only=True), expected()
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value.detach())


def test_alone_ranks_are_started_for_it(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = dict(os.environ)
    out = tmp_path / "out.pt"
    arguments = ["run", str(files / "reader.spmd"), "--inputs", str(files / "inputs.pt"), "--out", str(out)]
    assert main([*arguments, "--mesh", "tp=2", "--device", "cpu"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("Reader (")
    assert told[0].endswith(f"2 ranks on tp=2, started here, torch {torch.__version__}")
    assert told[1].split() == ["rank", "place", "on", "nodes", "collectives", "moved", "time", "in", "collectives"]
    assert [line.split()[:2] for line in told[2:4]] == [["0", "tp=0"], ["1", "tp=1"]]
    assert f"written to {out}:" in told
    check_outputs(out)
    assert dict(os.environ) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out.pt"]


def test_under_torchrun(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.pt"
    program = ("-m", "spmd_lab", "run", str(files / "reader.spmd"), "--inputs", str(files / "inputs.pt"))
    done = run(*TORCHRUN, "--standalone", "--nproc-per-node=2", *program, "--out", str(out), "--device=cpu")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 ranks on tp=2, torchrun, torch") == 1
    check_outputs(out)


def test_ranks_with_other_inputs_are_refused_together(files: Path, tmp_path: Path) -> None:
    script = (
        "import os, sys; from spmd_lab.__main__ import main; "
        "mine = sys.argv[2 + int(os.environ['RANK'])]; "
        "sys.exit(main(['run', sys.argv[1], '--inputs', mine, '--device=cpu', '--timeout=30']))"
    )
    (tmp_path / "script.py").write_text(script)
    given = [str(files / name) for name in ("reader.spmd", "inputs.pt", "others.pt")]
    done = run(*TORCHRUN, "--standalone", "--nproc-per-node=2", str(tmp_path / "script.py"), *given)
    assert done.returncode != 0
    assert "rank 1: ranks have different input values: rank 0 has" in done.stderr
    assert "nothing was run" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "environment", "text"),
    [
        (["four.spmd", "--inputs", "inputs.pt"], {"RANK": "0", "WORLD_SIZE": "2"}, "Mesh(tp=4): 4 ranks; torchrun has"),
        (["reader.spmd", "--inputs", "inputs.pt", "--mesh", "dp=2"], {}, "is for Mesh(tp=2), not for Mesh(dp=2)"),
        (["nothing.spmd"], {}, "there is no file nothing.spmd"),
        (["inputs.pt"], {}, "inputs.pt is no saved program"),
        (["reader.spmd"], {}, "Reader has 5 inputs"),
        (["reader.spmd", "--inputs", "nothing.pt"], {}, "there is no file nothing.pt"),
        (["reader.spmd", "--inputs", "reader.spmd"], {}, "Reader has no input 'spmd_lab'"),
        (["reader.spmd", "--inputs", "inputs.pt", "--out", "no/out.pt"], {}, "there is no folder no"),
        (["reader.spmd", "--inputs", "inputs.pt", "--out", "."], {}, ". is a folder"),
        (["reader.spmd", "--inputs", "inputs.pt", "--timeout", "0"], {}, "ranks cannot wait for 0.0 seconds"),
        (
            ["reader.spmd", "--inputs", "inputs.pt", "--timeout", "3"],
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
            "nobody says where the ranks meet",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    files: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    environment: dict[str, str],
    text: str,
) -> None:
    monkeypatch.chdir(files)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    assert main(["run", *arguments]) in (1, 2)
    assert text in capsys.readouterr().err
    assert dict(os.environ) == before


def test_another_torch_is_refused(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = torch.load(files / "reader.spmd", weights_only=True)
    torch.save(data | {"torch": "1.2.3"}, tmp_path / "old.spmd")
    assert main(["run", str(tmp_path / "old.spmd")]) == 2
    assert f"was written by torch 1.2.3, this is torch {torch.__version__}" in capsys.readouterr().err


# --- two machines -------------------------------------------------------------------------------


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)


@pytest.fixture
def machines() -> Iterator[tuple[str, str]]:
    """Two network namespaces that see each other alone: 10.213.77.1 and 10.213.77.2."""
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` to make network namespaces with")
    names = (f"spmd{os.getpid()}a", f"spmd{os.getpid()}b")
    try:
        for name in names:
            ip("netns", "add", name)
        ip("-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for number, name in enumerate(names, start=1):
            ip("-n", name, "addr", "add", f"10.213.77.{number}/24", "dev", "eth0")
            for link in ("eth0", "lo"):
                ip("-n", name, "link", "set", link, "up")
    except (subprocess.CalledProcessError, OSError) as error:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False, timeout=20)
        pytest.skip(f"network namespaces are not allowed here: {error}")
    try:
        yield names
    finally:
        for name in names:
            end_all(name)
            ip("netns", "del", name)


def end_all(name: str) -> None:
    """End every process of a network namespace, as a power failure does."""
    listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True, timeout=20)
    for pid in listed.stdout.split():
        try:
            os.kill(int(pid), 9)
        except ProcessLookupError:
            continue


def test_a_machine_that_is_lost_ends_the_others_with_an_error(machines: tuple[str, str], tmp_path: Path) -> None:
    with odd_operators.rule_of(odd_operators.linger):
        odd_operators.program_of(odd_operators.linger).save(tmp_path / "linger.spmd")
    torch.save([torch.tensor([0.0, 0.0, 60.0, 60.0])], tmp_path / "inputs.pt")
    script = tmp_path / "script.py"  # rank 1 lingers for a minute, and rank 0 waits for it
    script.write_text(
        "import sys; from tests.run import odd_operators; from spmd_lab.__main__ import main\n"
        "print('at work', flush=True)\n"
        "sys.exit(main(['run', *sys.argv[1:]]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "eth0"}
    agents = [
        subprocess.Popen(
            [
                *("ip", "netns", "exec", name, *TORCHRUN, "--nnodes=2", "--nproc-per-node=1", "--max-restarts=0"),
                *("--node-rank", str(rank), "--master-addr=10.213.77.1", "--master-port=29577"),
                *(str(script), str(tmp_path / "linger.spmd"), "--inputs", str(tmp_path / "inputs.pt")),
                *("--device=cpu", "--timeout=20"),
            ],
            env=environment,
            stdout=(tmp_path / f"out{rank}").open("w"),
            stderr=(tmp_path / f"err{rank}").open("w"),
        )
        for rank, name in enumerate(machines)
    ]
    try:
        deadline = time.monotonic() + 60
        while (tmp_path / "out1").read_text() == "" and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(5)  # the ranks meet, and rank 0 comes to its collective
        assert agents[0].poll() is None, (tmp_path / "err0").read_text()
        end_all(machines[1])
        start = time.monotonic()
        assert agents[0].wait(timeout=40) != 0
        assert time.monotonic() - start < 20 + 10
    finally:
        for name in machines:
            end_all(name)
        for agent in agents:
            agent.wait(timeout=20)
    told = (tmp_path / "err0").read_text()
    assert "rank 0: rank 0 cannot go on: " in told
    assert "has another rank failed, or is it late?" in told
    assert "node: out, of step resolve:out" in told
