"""The magic in a real shell: it stands for plain Python, shows what it made, and returns it."""

from __future__ import annotations

import atexit
import re
import sys
from typing import TYPE_CHECKING

import pytest
import torch
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

import spmd_lab as sl
from spmd_lab.expand.propagate import _Walk
from spmd_lab.jupyter.cell import cell_program
from spmd_lab.prove import VerifyReport, verify
from tests.show.html_reader import read
from tests.show.models import expanded

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
    """A shell that leaves nothing: neither lines in the user's history, nor work for when Python ends."""
    config = Config({"HistoryManager": {"enabled": False}, "InteractiveShell": {"cache_size": 0}})
    main = sys.modules["__main__"]
    shell = InteractiveShell.instance(config=config)
    shell.run_line_magic("load_ext", "spmd_lab")
    assert shell.run_cell(SETUP).success
    yield shell
    shell.run_line_magic("unload_ext", "spmd_lab")
    atexit.unregister(shell.atexit_operations)
    shell.atexit_operations()
    InteractiveShell.clear_instance()
    sys.modules["__main__"] = main  # which a shell takes the place of


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


def test_verify_shows_the_card_with_the_proof(shell: InteractiveShell) -> None:
    line = "%spmd_expand --mesh dp=2 --batch dp --loss loss --verify -o kept model(x)"
    with capture_output() as shown:
        expansion = shell.run_cell(line).result
    assert isinstance(expansion, sl.Expansion)
    assert shell.user_ns["kept"] is expansion
    assert expansion.report.ok
    card = expansion.card(expansion.program.verify())
    assert (repr(expansion), expansion._repr_html_()) == (repr(card), card._repr_html_())
    assert "every node equal on 2 ranks" in expansion._repr_html_()
    assert "Net on dp=2: " in shown.stdout
    assert shown.stdout.count("every node equal on 2 ranks") == 2  # in the line of truth, and as the proof
    assert shown.outputs == []


def test_a_wrong_program_is_shown_as_one(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    def worse(program: sl.Program, *_: object) -> VerifyReport:
        return verify(program.rewrite(drop_a_collective))

    def drop_a_collective(module: torch.fx.GraphModule) -> None:
        node = next(node for node in module.graph.nodes if "all_reduce" in str(node.target))
        node.replace_all_uses_with(node.args[0])

    monkeypatch.setattr(sl.Program, "verify", worse)
    expansion = expand(shell, "--mesh dp=2 --batch dp --loss loss --verify model(x)")
    assert "WRONG" in repr(expansion)
    assert "WRONG" in expansion._repr_html_()


def test_a_semicolon_keeps_it_silent(shell: InteractiveShell) -> None:
    with capture_output() as shown:
        assert shell.run_cell("%spmd_expand -o kept model(x) --mesh dp=2 --batch dp;").success
    assert shown.stdout == ""
    assert layouts(shell.user_ns["kept"])["x"] == "f32[8/dp, 4]"


@pytest.mark.parametrize("code", ["%spmd_expand --help", "%spmd_expand -h", "%%spmd_expand --help\ny = x"])
def test_help_is_what_the_question_mark_shows(shell: InteractiveShell, code: str) -> None:
    with capture_output() as asked:
        shell.run_cell("%spmd_expand?")
    with capture_output() as shown:
        assert shell.run_cell(code).result is None
    assert shown.stdout == asked.stdout
    parser = shell.find_line_magic("spmd_expand").__func__.parser
    flags = [flag for action in parser._actions for flag in action.option_strings]
    assert len(flags) > 10
    assert all(flag in shown.stdout for flag in flags)


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
        ('--params "q.*=o/tp ..." --stored fsdp("dp")', {"q.weight": "f32[8/tp/dp, 4]", "o.bias": "f32[4/dp]"}),
        (
            '--stored "q.weight=o i/dp" --stored "o.weight=o/tp i"',
            {"q.weight": "f32[8, 4/dp]", "o.weight": "f32[4/tp, 8]"},
        ),
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


def test_a_line_of_the_magic_is_told_as_it_was_typed(shell: InteractiveShell) -> None:
    line = "kept = %spmd_expand model.q(x) --mesh dp=2 --params \"weight=o/dp 'i'\""
    assert shell.run_cell(line.replace("'i'", "i")).success
    (step,) = (step for step in shell.user_ns["kept"].steps if step.op == "aten.addmm.default")
    assert step.source is not None
    assert step.source.code == line.replace("'i'", "i")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("model --mesh dp=2", "model is not a call"),
        ("--mesh dp=2", "the call is missing"),
        ("model(x", "a bracket stays open"),
        ("model(x)", "the mesh is missing"),
        ("--mesh dp model(x)", "--mesh dp: 'dp' is not an axis and its size"),
        ("--mesh dp=0 model(x)", "--mesh dp=0: axis 'dp' has size 0"),
        ("--mash dp=2 model(x)", "there is no --mash: did you mean '--mesh'"),
        ("--mesh dp=2 -z model(x)", "unrecognized arguments: -z"),
        ("--mesh dp=2 modle(x)", r"modle is not defined: did you mean model\?"),
        ("--mesh dp=2 model(unknown)", "unknown is not defined"),
        ("model(x) --mesh", "--mesh: expected one argument"),
        ("--mesh dp=2 --pending maybe model(x)", "--pending: invalid choice: 'maybe'"),
        ("--mesh dp=2 --params weight model(x)", "--params weight: weight is not defined.*; a rule"),
        ('--mesh dp=2 --params "q.weight o/dp" model(x)', "q.weight o/dp is no rule"),
        ("--mesh dp=2 --params 3 model(x)", "--params 3 gives a int"),
        ('--mesh dp=2 --loss "out =" model(x)', "--loss out = is no expression"),
        ("--mesh dp=2 --loss out.sum() model(x)", r"--loss out.sum\(\): out is not defined; a function of the output"),
        ("--mesh dp=2 -o 3x model(x)", "-o 3x is no name"),
    ],
)
def test_bad_lines_are_refused_in_one_line(shell: InteractiveShell, line: str, what: str) -> None:
    with pytest.raises(UsageError, match=what) as caught:
        shell.run_line_magic("spmd_expand", line)
    assert "\n" not in str(caught.value)


def test_what_a_function_lacks_is_its_own_error(shell: InteractiveShell) -> None:
    shell.run_cell("def given():\n    return nothing")
    with pytest.raises(NameError, match="'nothing' is not defined"):
        shell.run_line_magic("spmd_expand", "--mesh dp=2 model(given())")


def test_errors_of_the_expansion_come_through(shell: InteractiveShell) -> None:
    with pytest.raises(sl.SpmdLabError, match=r"'k\.weight' matches no parameter"):
        shell.run_line_magic("spmd_expand", '--mesh dp=2 --params "k.weight=o/dp i" model(x)')


# --- as a cell ------------------------------------------------------------------------------------

CELL = """h = x @ w
n = h.shape[0] + offset
y = h.relu() / n
loss = y.sum()"""


@pytest.fixture
def tensors(shell: InteractiveShell) -> InteractiveShell:
    assert shell.run_cell("w, offset = torch.arange(32.0).reshape(4, 8), 2").success
    return shell


def test_a_cell_is_expanded_from_what_it_reads_to_what_it_assigns(tensors: InteractiveShell) -> None:
    line = '--mesh dp=2,tp=2 --inputs "x=b/dp d, w=d h/tp"'
    expansion = tensors.run_cell_magic("spmd_expand", line, CELL)
    assert layouts(expansion) == {
        "x": "f32[8/dp, 4]",
        "w": "f32[4, 8/tp]",
    }
    names = [found.name for found in expansion.traced.outputs if found.role == "output"]
    assert [name.rpartition(".")[2] for name in names] == ["h", "y", "loss"]
    assert expansion.program.verify().ok
    assert {step.source.code for step in expansion.steps if step.source is not None} >= {"h = x @ w"}


def test_the_notebook_gets_the_values_of_one_device(tensors: InteractiveShell) -> None:
    tensors.run_cell_magic("spmd_expand", "--mesh dp=2 --batch dp", CELL)
    x, w, names = tensors.user_ns["x"], tensors.user_ns["w"], tensors.user_ns
    assert torch.equal(names["h"], x @ w)
    assert names["n"] == 10
    assert torch.equal(names["y"], (x @ w).relu() / 10)


def test_a_cell_has_the_loss_that_it_names(tensors: InteractiveShell) -> None:
    line = '--mesh dp=2 --inputs "x=b/dp d" --loss loss'
    assert tensors.run_cell("w.requires_grad_()").success
    expansion = tensors.run_cell_magic("spmd_expand", line, CELL)
    assert "grad(w)" in [found.name for found in expansion.traced.outputs]
    assert expansion.program.verify().ok


def test_a_cell_stands_for_the_plain_python_of_its_help(tensors: InteractiveShell) -> None:
    told = tensors.find_line_magic("spmd_expand").__doc__.partition("%%spmd_expand")[2]
    lines = [each.strip() for each in told.splitlines()]
    by_cell = tensors.run_cell_magic("spmd_expand", lines[0], "\n".join(lines[1:3]))
    start = next(index for index, each in enumerate(lines) if each.startswith("def cell"))
    define = "\n".join([lines[start], *(f"    {each}" for each in lines[start + 1 : start + 4])])
    known = {"spmd_lab": sl, "Mesh": sl.Mesh, **tensors.user_ns}
    exec(define, known)
    plain = eval(lines[start + 4], known)
    assert layouts(by_cell) == layouts(plain)
    assert [step.outputs for step in by_cell.steps] == [step.outputs for step in plain.steps]


@pytest.mark.parametrize(
    ("line", "cell", "what"),
    [
        ("--mesh dp=2 model(x)", "y = x", r"model\(x\) is not an option"),
        ("--mesh dp=2", "# nothing", "the cell is empty"),
        ("--mesh dp=2", "y = x +", "line 1 of the cell is no Python"),
        ("--mesh dp=2", "y = x\nreturn y", "line 2 of the cell: return has no meaning"),
        ("--mesh dp=2", "y = x + nowhere", "the cell reads nowhere, which nothing defines"),
        ("--mesh dp=2", "n = 3", "the cell assigns no tensor"),
        ("--mesh dp=2", "y = x\nif y is x:\n    yield y", "line 3 of the cell: yield has no meaning"),
        ("--mesh dp=2", "y = x\nbreak", "line 2 of the cell: 'break' outside loop"),
        ("--mesh dp=2", "from math import *\ny = x", r"line 1 of the cell: import \* has no meaning"),
        ("", "y = x + 1", "the mesh is missing"),
    ],
)
def test_bad_cells_are_refused_in_one_line(shell: InteractiveShell, line: str, cell: str, what: str) -> None:
    with pytest.raises(UsageError, match=what) as caught:
        shell.run_cell_magic("spmd_expand", line, cell)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("cell", "read", "assigned"),
    [
        ("x += 1", {"x"}, {"x"}),
        ("h = x\nx = h * 2", {"x"}, {"h", "x"}),
        ("y = sum(f(k) for k in [x])", {"x"}, {"y"}),
        ("y = (lambda x: x + 1)(w)", {"w"}, {"y"}),
        ("a, b = x, w", {"x", "w"}, {"a", "b"}),
        ("y = x\nfor i in range(2):\n    y = y + w", {"x", "w"}, {"y"}),
        ("import math\nfrom torch.nn import functional as F\ny = F.relu(x) * math.pi", {"x"}, {"y"}),
        ("def double(w):\n    h = w * 2\n    return h\ny = double(x)", {"x"}, {"y"}),
        ("def shift(v):\n    return v + w\ny = shift(x)", {"x", "w"}, {"y"}),
        ("class Two:\n    k = 2\ny = x * Two.k", {"x"}, {"y"}),
        ("x = sum(x for x in (w, w))", {"w"}, {"x"}),
        ("y = [w + 1 for w in (x, x)][0] + w", {"x", "w"}, {"y"}),
        ("try:\n    y = x * float('a')\nexcept ValueError as w:\n    y = x", {"x"}, {"y"}),
        ("match 3:\n    case n:\n        y = x * n", {"x"}, {"y"}),
        ("if False:\n    h = x\ny = x", {"x"}, {"y"}),
        ("h = x\ny = h * 2\ndel h", {"x"}, {"y"}),
    ],
)
def test_what_a_cell_reads_and_assigns(cell: str, read: set[str], assigned: set[str]) -> None:
    names = {"x": torch.ones(2), "w": torch.ones(2), "k": torch.ones(2), "f": lambda value: value}
    program = cell_program(cell, "<cell>", names)
    assert set(program.inputs) == read
    made = program.function(**program.inputs)
    assert set(made) == assigned
    assert all(torch.equal(made[name], program.values[name]) for name in assigned)


# --- films, parts, completion ---------------------------------------------------------------------


def test_a_film_is_shown_too(shell: InteractiveShell) -> None:
    with capture_output() as shown:
        shell.run_cell("%spmd_expand --mesh dp=2 --batch dp --film model(x)")
    assert any("application/vnd.jupyter.widget-view+json" in output.data for output in shown.outputs)


def test_what_was_expanded_before_an_error_is_shown(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    visit = _Walk.visit

    def fails(walk: _Walk, node: torch.fx.Node) -> None:
        if "relu" in node.name:
            raise sl.SpmdLabError("no way through", node=node.name)
        visit(walk, node)

    monkeypatch.setattr(_Walk, "visit", fails)
    with capture_output() as shown, pytest.raises(sl.SpmdLabError, match="no way through"):
        shell.run_line_magic("spmd_expand", "model(x) --mesh dp=2 --batch dp")
    told = shown.stdout + "".join(str(output.data) for output in shown.outputs)
    assert "addmm, forward" in told
    assert "relu, forward" not in told


def test_of_many_steps_before_an_error_the_ends_and_what_communicates_are_listed() -> None:
    steps = expanded(12).steps
    assert len(steps) > 300
    for told in (repr(steps), read(steps._repr_html_()).text):
        gaps = re.findall(r"\.\.\. (\d+) more steps?, (?:(\d+) communicate|without communication) \.\.\.", told)
        assert sum(int(count) for count, _ in gaps) == len(steps) - 60
        assert f"{len(steps)} steps" in told
        assert all(step.name in told for step in (*steps[:5], *steps[-5:]))
    communicating = [step for step in steps if step.collectives]
    assert len(communicating) > 60
    forward = steps[: next(at for at, step in enumerate(steps) if step.phase == "backward")]
    assert 0 < sum(bool(step.collectives) for step in forward) < 50
    printed = repr(forward)
    assert all(f"  {step.name} " in printed for step in forward if step.collectives)
    assert "communicate ..." not in printed
    assert len(steps._repr_html_()) < 250_000
    assert "more steps" not in repr(steps[:60])


@pytest.mark.parametrize(
    ("typed", "word", "expected"),
    [
        ("%spmd_expand model(x) --me", "--me", ["--mesh"]),
        ("%spmd_expand model(x) --v", "--v", ["--verify"]),
        ("kept = %spmd_expand --mesh here --p", "--p", ["--params", "--pending"]),
        ("%spmd_expand model(x) --mesh dp=2,tp=2 --batch d", "d", ["dp"]),
        ("%spmd_expand model(x) --mesh here --batch ", "", ["dp", "tp"]),
        ("%spmd_expand model(x) --mesh he", "he", ["here"]),
        ("%spmd_expand model(x) --pending k", "k", ["keep"]),
        ("%spmd_expand model(x) --params q", "q", ["q.bias", "q.weight"]),
        ('%spmd_expand model(x) --params "q.weight=o/tp i, o.w', "o.w", ["o.weight"]),
        ('%spmd_expand model(x) --mesh here --params "q.weight=o/t', "t", ["tp"]),
        ('%spmd_expand model(x) --mesh here --inputs "x=f32[8, 4]{sum: d', "d", ["dp"]),
        ('%spmd_expand model(x) --inputs "', "", ["scale", "x"]),
        ('%%spmd_expand --inputs "', "", ["x"]),
        ("%spmd_expand model(x) --loss lo", "lo", ["loss"]),
        ("%spmd_expand model(x, sc", "sc", ["scale="]),
        ("%spmd_expand --verify mode", "mode", ["model", "models"]),
    ],
)
def test_lines_are_completed(shell: InteractiveShell, typed: str, word: str, expected: list[str]) -> None:
    """In the way that a notebook asks; nothing of Python stands among what fits."""
    assert shell.run_cell("here = sl.Mesh(dp=2, tp=2)").success
    with provisionalcompleter():
        found = list(shell.Completer.completions(typed, len(typed)))
    assert [each.text for each in found] == expected
    assert {typed[each.start : each.end] for each in found} == {word}


@pytest.mark.parametrize("typed", ["%spmd_expand model(x) --mesh nonsense --batch d", "model(x) --me", "%time --me"])
def test_elsewhere_nothing_is_completed(shell: InteractiveShell, typed: str) -> None:
    with provisionalcompleter():
        assert not {"--mesh", "dp"} & {each.text for each in shell.Completer.completions(typed, len(typed))}


def test_an_extension_that_is_unloaded_leaves_nothing(shell: InteractiveShell) -> None:
    shell.run_line_magic("unload_ext", "spmd_lab")
    assert shell.find_line_magic("spmd_expand") is None
    assert shell.find_cell_magic("spmd_expand") is None
    assert shell.Completer.custom_matchers == []
    shell.run_line_magic("load_ext", "spmd_lab")
    assert len(shell.Completer.custom_matchers) == 1
