"""The magic in a real shell: it stands for plain Python, shows what it made, and returns it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import spmd_lab as sl

if TYPE_CHECKING:
    from collections.abc import Iterator

SETUP = """
import torch, spmd_lab as sl
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.o = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)
    def forward(self, x, scale=1.0):
        return self.o(self.q(x).relu() * scale)
model, x = Net(), torch.ones(8, 4)
models = {"the net": model}
def loss(out):
    return out.square().mean()
"""


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "spmd_lab")
    assert shell.run_cell(SETUP).success
    yield shell
    shell.run_line_magic("unload_ext", "spmd_lab")
    InteractiveShell.clear_instance()


def expand(shell: InteractiveShell, line: str) -> sl.Expansion:
    found = shell.run_line_magic("spmd_expand", line)
    assert isinstance(found, sl.Expansion)
    return found


def layouts(expansion: sl.Expansion) -> dict[str, str]:
    return {
        found.name: str(layout)
        for found, layout in zip(expansion.traced.inputs, expansion.input_layouts, strict=True)
        if found.role != "tangent"
    }


def test_the_line_of_the_documentation(shell: InteractiveShell) -> None:
    expansion = expand(shell, 'model(x) --mesh dp=4 --batch dp --params "**.weight=o/dp i"')
    assert expansion.mesh == sl.Mesh(dp=4)
    assert layouts(expansion) == {
        "q.weight": "f32[8/dp, 4]",
        "q.bias": "f32[8]",
        "o.weight": "f32[4/dp, 8]",
        "o.bias": "f32[4]",
        "x": "f32[8/dp, 4]",
    }


def test_it_stands_for_the_plain_python_of_its_help(shell: InteractiveShell) -> None:
    told = shell.find_line_magic("spmd_expand").__doc__
    line = next(each.strip() for each in told.splitlines() if each.strip().startswith("%spmd_expand model"))
    python = next(each.strip() for each in told.splitlines() if each.strip().startswith("spmd_lab.spmd_expand("))
    by_line = shell.run_cell(line).result
    plain = eval(python, {"spmd_lab": sl, "Mesh": sl.Mesh, "model": shell.user_ns["model"], "x": shell.user_ns["x"]})
    assert layouts(by_line) == layouts(plain)
    assert [(each.kind, each.axes, each.step, each.need) for each in by_line.collectives] == [
        (each.kind, each.axes, each.step, each.need) for each in plain.collectives
    ]


def test_a_cell_shows_the_expansion_once(shell: InteractiveShell) -> None:
    with capture_output() as shown:
        result = shell.run_cell("%spmd_expand --mesh dp=2 --batch dp model(x)").result
    assert isinstance(result, sl.Expansion)
    assert shown.stdout.count("Net on dp=2: ") == 1
    with capture_output() as shown:
        shell.run_cell("kept = %spmd_expand --mesh dp=2 --batch dp model(x)")
    assert isinstance(shell.user_ns["kept"], sl.Expansion)
    assert shown.stdout == ""


def test_verify_shows_the_proof_too(shell: InteractiveShell) -> None:
    with capture_output() as shown:
        shell.run_cell("%spmd_expand --mesh dp=2 --batch dp --loss loss --verify -o kept model(x)")
    assert "every node equal on 2 ranks" in shown.stdout + "".join(str(output.data) for output in shown.outputs)
    assert isinstance(shell.user_ns["kept"], sl.Expansion)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (
            '--params "q.weight=o/tp i" --params "o.weight=o i/tp"',
            {"q.weight": "f32[8/tp, 4]", "o.weight": "f32[4, 8/tp]"},
        ),
        ('--params "q.*=o/tp ..., o.weight=o i/tp"', {"q.bias": "f32[8/tp]", "o.weight": "f32[4, 8/tp]"}),
        ('--params colwise("q", axis="tp")|rowwise("o", axis="tp")', {"q.bias": "f32[8/tp]", "o.bias": "f32[4]"}),
        ("--params \"sl.colwise('q', axis='tp')\"", {"q.weight": "f32[8/tp, 4]"}),
        ('--inputs "x=f32[8/dp/tp, 4]"', {"x": "f32[8/dp/tp, 4]"}),
        ('--inputs "x=b d{sum: dp, tp}"', {"x": "f32[8, 4]{sum: dp, tp}"}),
        ("--inputs [[torch.distributed.tensor.Shard(0),torch.distributed.tensor.Replicate()]]", {"x": "f32[8/dp, 4]"}),
        ("--batch dp,x", {"x": "f32[8/dp, 4]"}),
    ],
)
def test_placements(shell: InteractiveShell, option: str, expected: dict[str, str]) -> None:
    found = layouts(expand(shell, f"--mesh dp=2,tp=2 {option} model(x)"))
    assert expected.items() <= found.items()


def test_calls_of_every_form(shell: InteractiveShell) -> None:
    args, options = "*[x], **{'scale': 2.0}", "--mesh dp=2"
    assert len(expand(shell, f'models["the net"]({args}) {options}').steps) > 0
    assert len(expand(shell, f"model.q(x) {options}").steps) < len(
        expand(shell, f"model(x, scale=3.0) {options}").steps
    )


def test_loss_and_pending(shell: InteractiveShell) -> None:
    kept = expand(shell, "--mesh dp=2 --batch dp --loss loss --pending keep model(x)")
    resolved = expand(shell, '--mesh dp=2 --batch dp --loss "lambda out: out.square().mean()" model(x)')
    assert any(layout is not None and layout.is_pending for layout in kept.output_layouts)
    assert not any(layout is not None and layout.is_pending for layout in resolved.output_layouts)
    written = {step.source.code for step in resolved.steps if step.source is not None}
    assert "lambda out: out.square().mean()" in written


def test_a_mesh_by_name_and_variables_of_a_function(shell: InteractiveShell) -> None:
    cell = """
def run():
    here, y = sl.Mesh(dp=2), x[:4]
    found = %spmd_expand model(y) --mesh here --batch dp
    return found
"""
    assert shell.run_cell(cell).success
    assert layouts(shell.user_ns["run"]())["x"] == "f32[4/dp, 4]"


def test_lines_point_into_the_cell_and_not_into_the_shell(shell: InteractiveShell) -> None:
    expansion = shell.run_cell("%spmd_expand torch.relu(x) --mesh dp=2").result
    (step,) = (step for step in expansion.steps if step.op == "aten.relu.default")
    assert step.source is not None
    assert "torch.relu(x)" in step.source.code


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("model --mesh dp=2", "model is not a call"),
        ("--mesh dp=2", "the call is missing"),
        ("model(x", "a bracket stays open"),
        ("model(x)", "the mesh is missing"),
        ("--mesh dp model(x)", "--mesh dp: 'dp' is not an axis and its size"),
        ("--mesh dp=0 model(x)", "--mesh dp=0: axis 'dp' has size 0"),
        ("--mash dp=2 model(x)", "unrecognized arguments: --mash"),
        ("model(x) --mesh", "argument --mesh: expected one argument"),
        ("--mesh dp=2 --pending maybe model(x)", "argument --pending: invalid choice: 'maybe'"),
        ("--mesh dp=2 --params weight model(x)", r"--params weight: name 'weight' is not defined; a rule"),
        ('--mesh dp=2 --params "q.weight o/dp" model(x)', "q.weight o/dp is no rule"),
        ("--mesh dp=2 --params 3 model(x)", "--params 3 gives a int"),
        ('--mesh dp=2 --loss "out =" model(x)', "--loss out = is no expression"),
        ("--mesh dp=2 -o 3x model(x)", "-o 3x is no name"),
    ],
)
def test_bad_lines_are_refused_in_one_line(shell: InteractiveShell, line: str, what: str) -> None:
    with pytest.raises(UsageError, match=what) as caught:
        shell.run_line_magic("spmd_expand", line)
    assert "\n" not in str(caught.value)


def test_errors_of_the_expansion_come_through(shell: InteractiveShell) -> None:
    with pytest.raises(sl.SpmdLabError, match=r"'k\.weight' matches no parameter"):
        shell.run_line_magic("spmd_expand", '--mesh dp=2 --params "k.weight=o/dp i" model(x)')
    with pytest.raises(NameError, match="unknown"):
        shell.run_line_magic("spmd_expand", "--mesh dp=2 unknown(x)")
