"""Pictures of graphs: they say what the graph is, and save themselves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

import spmd_lab as sl
from spmd_lab.records.graphs import step_graph_record, traced_graph_record
from spmd_lab.show.theme import AXIS_COLOURS
from spmd_lab.show.units import bytes_text
from tests.show.models import expanded

if TYPE_CHECKING:
    from pathlib import Path

NAMESPACE = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{NAMESPACE}text")]


def test_a_step_is_drawn_from_operands_to_outputs(expansion: sl.Expansion) -> None:
    for step in expansion.steps:
        if not step.collectives:
            continue
        picture = step.draw()
        labels = texts(picture.svg)
        assert {operand.name for operand in step.operands} <= set(labels)
        assert {str(operand.have) for operand in step.operands} <= set(labels)
        assert {str(layout) for layout in step.outputs if layout is not None} <= set(labels)
        for collective in step.collectives:
            (axis,) = collective.axes
            assert f"{collective.kind}({axis})" in labels
            assert bytes_text(collective.payload_bytes) in labels
            assert AXIS_COLOURS[expansion.mesh.axes.index(axis)] in picture.svg


def test_there_is_one_hexagon_for_each_collective(expansion: sl.Expansion) -> None:
    for step in expansion.steps:
        kinds = [node.shape for node in step_graph_record(step).nodes if node.axis >= 0]
        assert sorted(kinds) == sorted(collective.kind for collective in step.collectives)


def test_a_picture_says_what_it_shows(step: sl.Step) -> None:
    picture = step.draw()
    title = ElementTree.fromstring(picture.svg).find(f"{NAMESPACE}title")
    assert title is not None
    assert title.text == picture.alt
    assert step.name in picture.alt
    assert f'alt="{picture.alt}"' in picture._repr_html_()
    assert picture._repr_svg_() == picture.svg
    assert repr(picture) == f"<Picture: {picture.alt}>"


def test_a_small_graph_shows_every_node(expansion: sl.Expansion) -> None:
    record = traced_graph_record(expansion.traced)
    keys = {node.key for node in record.nodes}
    assert {node.name for node in expansion.traced.op_nodes} <= keys
    labels = texts(expansion.traced.draw().svg)
    assert {found.name for found in expansion.traced.inputs} <= set(labels)
    assert {found.name for found in expansion.traced.outputs} <= set(labels)
    assert all(edge.tail in keys and edge.head in keys for edge in record.edges)


def test_a_large_graph_is_drawn_by_modules() -> None:
    traced = expanded(12).traced
    assert len(traced.graph_module.graph.nodes) > 300
    record = traced_graph_record(traced)
    titles = {node.lines[0] for node in record.nodes}
    assert {"blocks.0.up", "blocks.11.down", "blocks.3", "head", "Stack itself"} <= titles
    counts = [int(count) for node in record.nodes for count in re.findall(r"\d+", node.lines[1])]
    assert sum(counts) == len(traced.op_nodes)
    assert ("module:blocks.0.norm", "module:blocks.0.up") in {(edge.tail, edge.head) for edge in record.edges}


def test_what_backward_reads_of_forward_runs_lightly_across(expansion: sl.Expansion) -> None:
    """Edges that span the whole picture would take Graphviz minutes."""
    phases = {node.name: expansion.traced.phase(node) for node in expansion.traced.graph_module.graph.nodes}
    edges = [edge for edge in traced_graph_record(expansion.traced).edges if edge.head in phases]
    assert any(edge.far for edge in edges)
    for edge in edges:
        assert edge.far == ((phases[edge.tail], phases[edge.head]) == ("forward", "backward"))
    svg = expansion.traced.draw().svg
    assert svg.count("stroke-dasharray") == sum(edge.far for edge in edges)


def test_drawing_looks_up_no_font_and_says_nothing(expansion: sl.Expansion, capfd: pytest.CaptureFixture[str]) -> None:
    for step in expansion.steps[:3]:
        step.draw()
    assert capfd.readouterr() == ("", "")


def test_a_picture_is_saved(step: sl.Step, tmp_path: Path) -> None:
    path = step.draw().save(tmp_path / "step.svg")
    assert path.read_text() == step.draw().svg
    with pytest.raises(sl.SpmdLabError, match=r"saved as SVG[\s\S]*step\.png[\s\S]*ends in \.svg"):
        step.draw().save(tmp_path / "step.png")
    with pytest.raises(sl.SpmdLabError, match="no folder"):
        step.draw().save(tmp_path / "nowhere" / "step.svg")
