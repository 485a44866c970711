"""Programs in files: what is loaded is what was saved, and nothing else is ever run."""

from __future__ import annotations

import pickle
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch

import spmd_lab as sl
from spmd_lab.errors import ArgumentError, MeshError, SavingError
from tests.run.saved_cases import program_of, runs_as_saved

if TYPE_CHECKING:
    from pathlib import Path

    from tests.run.pool import RankPool

MESH = sl.Mesh(tp=4)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return program_of(MESH).save(tmp_path / "reader.spmd")


def test_every_rank_has_the_graph_that_was_saved(file: Path) -> None:
    program, saved = program_of(MESH), sl.load(file)
    assert saved.mesh == MESH
    assert saved.rank_axes == ("tp",)
    assert [(port.name, port.role) for port in saved.inputs] == [
        (each.name, each.role) for each in program.expansion.traced.inputs
    ]
    assert [port.layout for port in saved.outputs] == list(program.output_layouts)
    for rank in range(MESH.size):
        loaded, made = saved.for_rank(rank).graph, program.for_rank(rank).graph
        assert [node.format_node() for node in loaded.nodes] == [node.format_node() for node in made.nodes]
        steps = [node.meta.get("spmd_step", "") for node in made.nodes]
        assert [node.meta["spmd_step"] for node in loaded.nodes] == steps


def test_constants_travel(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor([1.0, 2.0, 3.0]).to(torch.bfloat16).float() * float("inf")

    made = sl.spmd_expand(program, torch.ones(4, 3), mesh=MESH, batch="tp").program
    saved = sl.load(made.save(tmp_path / "constant.spmd"))
    flat = [torch.ones(layout.local_shape(1)) for layout in made.input_layouts]
    for found, wanted in zip(saved.for_rank(1)(*flat), made.for_rank(1)(*flat), strict=True):
        assert torch.equal(found, wanted)


def test_equal_programs_have_one_digest(file: Path, tmp_path: Path) -> None:
    again = program_of(MESH).save(tmp_path / "again.spmd")
    other = program_of(sl.Mesh(tp=2)).save(tmp_path / "other.spmd")
    assert sl.load(file).digest == sl.load(again).digest != sl.load(other).digest


def test_real_ranks_run_what_another_process_saved(two_ranks: RankPool, tmp_path: Path) -> None:
    path = program_of(sl.Mesh(tp=2)).save(tmp_path / "reader.spmd")
    first, second = two_ranks.run(runs_as_saved, str(path))
    assert first == second == sl.load(path).digest


def changed(path: Path, **entries: Any) -> Path:
    """The file with other entries."""
    data = torch.load(path, weights_only=True)
    torch.save(data | entries, path)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(SavingError) as caught:
        sl.load(path)
    return str(caught.value)


def test_another_torch_is_refused(file: Path) -> None:
    text = refusal(changed(file, torch="1.2.3"))
    assert text.startswith(f"{file} was written by torch 1.2.3, this is torch {torch.__version__}\n  try: torch 1.2")


def test_a_newer_format_is_refused(file: Path) -> None:
    assert "has format 99, this spmd_lab reads up to 1" in refusal(changed(file, spmd_lab=99))


def test_another_mesh_is_refused(file: Path) -> None:
    with pytest.raises(MeshError, match=re.escape("tp=4 has no rank 4")):
        sl.load(file).for_rank(4)


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self.path).touch, (self.path,)


@pytest.mark.parametrize("write", [pickle.dumps, None], ids=["pickle", "torch.save"])
def test_no_code_is_run_while_a_file_is_read(tmp_path: Path, write: Any) -> None:
    path, sprung = tmp_path / "trap.spmd", tmp_path / "sprung"
    if write is None:
        torch.save({"spmd_lab": 1, "graphs": Trap(sprung)}, path)
    else:
        path.write_bytes(write(Trap(sprung)))
    assert refusal(path).startswith(f"{path} is no saved program")
    assert not sprung.exists()


@pytest.mark.parametrize("target", ["os.system", "aten.nothing.default", "builtins.exec", "aten.mm.Tensor"])
def test_only_operators_of_torch_are_called(file: Path, target: str) -> None:
    graphs = torch.load(file, weights_only=True)["graphs"]
    for graph in graphs.values():
        next(node for node in graph["nodes"] if node["op"] == "call_function")["target"] = target
    with pytest.raises(SavingError, match=re.escape(f"the program calls {target}, which torch")):
        sl.load(changed(file, graphs=graphs)).for_rank(0)


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.spmd").startswith(f"there is no file {tmp_path}/none.spmd")
    with pytest.raises(ArgumentError, match="there is no folder"):
        program_of(MESH).save(tmp_path / "nowhere" / "x.spmd")
    assert list(tmp_path.iterdir()) == []
