"""Text is Python that runs, and tables that can be read back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import spmd_lab as sl
from spmd_lab.records import text
from spmd_lab.records.layouts import layout_record
from spmd_lab.show.theme import AXIS_COLOURS, BACKWARD, BAD, FORWARD, GOOD, GREY
from spmd_lab.show.units import bytes_text
from tests.show.models import Stack

ROOT = Path(__file__).parents[2]


def _run(traced: sl.TracedGraph, values: list[torch.Tensor]) -> Any:
    """Run the printed code."""
    names: dict[str, Any] = {}
    exec(traced.to_text(), names)
    return names[traced.name](*values)


def _equal(got: Any, expected: Any) -> bool:
    return all(one is two is None or torch.equal(one, two) for one, two in zip(got, expected, strict=True))


def test_printed_code_runs_to_the_same_numbers() -> None:
    x = torch.randn(4, 16)
    traced = sl.trace(Stack(2), x, loss=lambda out: out.pow(2).mean())
    values = [torch.randn(found.global_shape) for found in traced.inputs]
    assert _equal(_run(traced, values), traced.graph_module(*values))


class Odd(nn.Module):
    """Constants of every kind."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.masked_fill(x > 0, float("-inf")).to(torch.float64)
        return torch.cat([x, torch.ones(2, 3, dtype=torch.float64, device=x.device)]).contiguous()[:, 1:].unbind(1)[0]


def test_printed_constants_are_python() -> None:
    traced = sl.trace(Odd(), torch.randn(2, 3), backward=False)
    values = [torch.randn(2, 3)]
    assert _equal(_run(traced, values), traced.graph_module(*values))


def test_lines_of_the_user_stand_above_their_statements(expansion: sl.Expansion) -> None:
    lines = expansion.traced.to_text().splitlines()
    for node in expansion.traced.op_nodes:
        at = next(position for position, line in enumerate(lines) if line.startswith(f"    {node.name} = "))
        above = next(line for line in reversed(lines[:at]) if line.startswith("    # models.py"))
        source = expansion.traced.source(node)
        assert above == f"    # {source}" + (f"  ({source.module})" if source.module else "")


def test_long_code_is_left_out_in_the_middle_and_counted(expansion: sl.Expansion) -> None:
    short, whole = repr(expansion.traced), expansion.traced.to_text()
    statements = sum(node.op == "call_function" for node in expansion.traced.graph_module.graph.nodes)
    assert f"# ... {statements - 60:,} more statements ..." in short
    assert "more" not in whole
    assert len(whole) > len(short)
    assert "to_text() gives all of it" in short


def test_a_program_prints_the_layouts_of_its_values(expansion: sl.Expansion) -> None:
    whole = expansion.program.to_text()
    for node in expansion.traced.op_nodes:
        if node.name in expansion.layouts:
            assert f"# {expansion.layout(node).with_local_sizes()}" in whole


def test_a_program_prints_what_becomes_of_each_operator(expansion: sl.Expansion) -> None:
    lines = expansion.program.to_text().splitlines()
    traced = expansion.traced.to_text()
    moved = [(step, operand) for step in expansion.steps for operand in step.operands if operand.redistribution]
    assert len(moved) > 10
    for step, operand in moved:
        way = f"    #     {operand.name}: {operand.have} -> {operand.need}"
        title = "    #   " if step.only_moves else f"    #   {step.name} = "
        heading = next(at for at, line in enumerate(lines) if line.startswith(title) and step.name in line)
        following = lines[heading + 1 :]
        ways = following[: next(at for at, line in enumerate(following) if not line.startswith("    #     "))]
        assert way in ways
        assert step.only_moves or lines[heading].removeprefix("    #   ") in traced


def test_a_step_prints_what_it_does(step: sl.Step) -> None:
    printed = repr(step)
    lines = printed.splitlines()
    assert lines[0] == f"{step.name}: {step.op}, {step.phase}"
    assert str(step.source) in lines[1]
    for operand in step.operands:
        row = next(line for line in lines if line.startswith(f"  {operand.name} "))
        assert str(operand.have) in row
        assert operand.need.with_local_sizes() in row
        assert row.endswith("as it is") == (operand.redistribution is None)
    for collective in step.collectives:
        assert f"{collective.kind}({collective.axes[0]}) {bytes_text(collective.payload_bytes)}" in printed
    for layout in step.outputs:
        assert f"  -> {layout.with_local_sizes()}" in lines
    for node in step.local_graph.graph.nodes:
        assert node.op == "output" or node.name in printed


def test_an_operand_that_is_read_twice_is_shown_twice() -> None:
    expansion = sl.spmd_expand(lambda x: x * x, torch.randn(4, 4), mesh=sl.Mesh(dp=2), batch="dp")
    step = next(step for step in expansion.steps if step.op == "aten.mul.Tensor")
    assert [operand.name for operand in step.operands] == ["x", "x"]
    assert "as rank 0 runs it (x, x_1)" in repr(step)
    assert step.draw().svg.count(">x<") == 2
    three = torch.full((2, 4), 3.0)
    assert torch.equal(step.local_graph(three, three), three * three)


def test_an_expansion_ends_with_what_to_run_next(expansion: sl.Expansion) -> None:
    last = repr(expansion).splitlines()[-1]
    assert last.startswith("next: expansion[")
    found, report = eval(last.removeprefix("next: "), {"expansion": expansion})
    assert found
    assert report.ok


def test_a_wrong_program_is_told_where_it_is_wrong(expansion: sl.Expansion) -> None:
    graph = expansion.program.graph_module.graph
    broken = sl.rebuild(expansion)
    reduced = next(n for n in broken.graph_module.graph.nodes if "all_reduce" in str(n.target) and n.args[1] == "sum")
    waited = next(iter(reduced.users))
    waited.replace_all_uses_with(reduced.args[0])
    broken.graph_module.graph.erase_node(waited)
    broken.graph_module.graph.erase_node(reduced)
    broken.graph_module.recompile()
    report = broken.verify()
    first = report.first_divergence
    assert first is not None
    for shown in (repr(report), report._repr_html_()):
        assert "NOT equal on 4 ranks" in shown
        assert first.step.name in shown
        assert first.value in shown
        assert first.step.source.place in shown
    assert graph is expansion.program.graph_module.graph


@pytest.mark.parametrize(
    "written",
    ["f32[16/dp/tp, 64]{}", "f32[16/tp/dp, 64]", "i64[(64 16/tp)]", "f32[]{sum: dp, tp}", "f32[5/dp, 6]{max: tp}"],
)
def test_a_layout_is_cut_only_where_axes_are_named(written: str) -> None:
    layout = sl.Layout.parse(written.removesuffix("{}"), sl.Mesh(dp=4, tp=2))
    record = layout_record(layout)
    assert record.text == str(layout)
    assert [span.text for span in record.spans if span.axis >= 0] == [
        word for word in ("dp", "tp") if word in written
    ] or written.startswith("f32[16/tp/dp")
    assert all(span.axis == layout.mesh.axes.index(span.text) for span in record.spans if span.axis >= 0)
    assert f"{record.text} ▸ {record.local}" == layout.with_local_sizes()


# --- the same every time, in every colour, without torch ------------------------------------------


def test_another_process_shows_the_same() -> None:
    command = [sys.executable, "-m", "tests.show.models"]
    runs = [
        subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE)
        for seed in ("1", "2")
    ]
    first, second = (run.communicate(timeout=120)[0] for run in runs)
    assert [run.returncode for run in runs] == [0, 0]
    assert len(first.splitlines()) == 15
    assert first == second


def test_nothing_shown_holds_an_address(expansion: sl.Expansion) -> None:
    shown = [repr(value) + value._repr_html_() for value in (expansion, expansion.traced, expansion.program)]
    assert not [text for text in shown if " at 0x" in text]


def _luminance(colour: str) -> float:
    parts = [int(colour[position : position + 2], 16) / 255 for position in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colour", [*AXIS_COLOURS, GOOD, BAD, GREY, FORWARD, BACKWARD])
def test_colours_can_be_read_on_white_and_on_black(colour: str) -> None:
    luminance = _luminance(colour)
    assert 1.05 / (luminance + 0.05) >= 4.5
    assert (luminance + 0.05) / 0.05 >= 4.5


WITHOUT_TORCH = """
import pkgutil, sys, types
sys.modules["torch"] = None
package = sys.modules["spmd_lab"] = types.ModuleType("spmd_lab")
package.__path__ = ["spmd_lab"]
import importlib, spmd_lab.show
for module in pkgutil.iter_modules(spmd_lab.show.__path__):
    importlib.import_module(f"spmd_lab.show.{module.name}")
from spmd_lab.show.html import html
from spmd_lab.show.value_records import CollectivesRecord
from spmd_lab.show.text import text
record = CollectivesRecord(0, 0, 0, (), 0)
print(text(record), html(record))
print(sorted(name for name in sys.modules if name.startswith("spmd_lab.") and not name.startswith("spmd_lab.show")))
"""


def test_records_are_drawn_without_torch_and_without_values() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "no collectives" in done.stdout
    assert done.stdout.splitlines()[-1] == "['spmd_lab.errors', 'spmd_lab.files']"


def test_what_has_no_record_is_refused() -> None:
    with pytest.raises(TypeError, match="no record for a int"):
        text(3)  # type: ignore[arg-type]
