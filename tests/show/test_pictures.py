"""Pictures of graphs: they say what the graph is, and save themselves."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import networkx
import pygraphviz
import pytest

import spmd_lab as sl
from spmd_lab.records.drawing import selected
from spmd_lab.records.graphs import step_graph_record, traced_graph_record
from spmd_lab.records.program_graphs import program_graph_record
from spmd_lab.show.graph_selection import VISIBLE, bounded, folded
from spmd_lab.show.part_records import EdgeRecord, GraphRecord, NodeRecord
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
    whole = traced_graph_record(traced)
    assert len(whole.nodes) > VISIBLE
    record = bounded(whole)
    titles = {node.lines[0] for node in record.nodes}
    assert {"blocks.0.up", "blocks.11.down", "blocks.3", "head", "itself"} <= titles
    counts = [int(count) for node in record.nodes for count in re.findall(r"\d+", node.lines[1])]
    assert sum(counts) == len(traced.op_nodes)
    assert ("module:blocks.0.norm", "module:blocks.0.up") in {(edge.tail, edge.head) for edge in record.edges}
    assert texts(traced.draw().svg) == [line for node in record.nodes for line in node.lines]
    assert f"{len(whole.nodes)} nodes in {len(record.nodes)} modules" in traced.draw().alt


def test_depth_draws_modules(expansion: sl.Expansion) -> None:
    record = folded(program_graph_record(expansion.program), 1)
    assert {node.lines[0] for node in record.nodes} >= {"blocks", "head"}
    told = " ".join(line for node in record.nodes for line in node.lines[2:])
    counts = [int(count) for count in re.findall(r"(\d+) (?:all|reduce)", told)]
    assert sum(counts) == len(expansion.program.collectives)


def test_what_lies_around_a_node_is_what_is_near(expansion: sl.Expansion) -> None:
    name = next(step.name for step in expansion.steps if step.collectives)
    graph = networkx_of_record(program_graph_record(expansion.program))
    for hops in (0, 1, 3):
        drawn = selected(expansion.program, None, name, hops, None)
        start = f"local_{name}"
        near = networkx.single_source_shortest_path_length(graph.to_undirected(), start, cutoff=hops)
        assert {node.key for node in drawn.nodes} == set(near)
    with pytest.raises(sl.SpmdLabError, match=r"no node 'nod'[\s\S]*around='nod'"):
        expansion.program.draw(around="nod")
    with pytest.raises(sl.SpmdLabError, match="too small"):
        expansion.program.draw(depth=0)
    with pytest.raises(sl.SpmdLabError, match="only='moves'"):
        expansion.program.draw(only="moves")


def networkx_of_record(record: GraphRecord) -> networkx.DiGraph:
    graph = networkx.DiGraph((edge.tail, edge.head) for edge in record.edges)
    graph.add_nodes_from(node.key for node in record.nodes)
    return graph


def test_collectives_alone_are_linked_by_what_flows_between(expansion: sl.Expansion) -> None:
    whole = networkx_of_record(program_graph_record(expansion.program))
    record = selected(expansion.program, None, None, 1, "collectives")
    assert len(record.nodes) == len(expansion.program.collectives)
    loud = {node.key for node in record.nodes}
    edges = {(edge.tail, edge.head) for edge in record.edges}
    for tail in loud:
        for head in loud - {tail}:
            between = whole.subgraph(set(whole) - (loud - {tail, head}))
            assert networkx.has_path(between, tail, head) == ((tail, head) in edges)


def test_a_graph_without_modules_is_cut_and_says_so() -> None:
    nodes = tuple(NodeRecord(f"n{index}", "op", ("relu",)) for index in range(12))
    edges = tuple(EdgeRecord(one.key, two.key) for one, two in pairwise(nodes))
    record = bounded(GraphRecord("a chain", True, nodes, edges), limit=5)
    assert len(record.nodes) == 6
    assert record.nodes[-1].lines == ("7 more are hidden",)
    assert "7 nodes hidden" in record.alt


def test_networkx_has_the_facts_of_every_node(expansion: sl.Expansion) -> None:
    graph = expansion.program.to_networkx()
    nodes = list(expansion.program.graph_module.graph.nodes)
    assert set(graph) == {node.name for node in nodes}
    assert set(graph.edges) == {(each.name, node.name) for node in nodes for each in node.all_input_nodes}
    loud = [facts for _, facts in graph.nodes(data=True) if facts["kind"] == "collective"]
    assert sum(facts["payload_bytes"] for facts in loud) == expansion.collectives.total("payload_bytes")
    assert {facts["op"] for facts in loud} == {found.kind for found in expansion.collectives}
    assert {facts["axis"] for facts in loud} == {axis for found in expansion.collectives for axis in found.axes}
    values = {facts["value"]: facts["layout"] for _, facts in graph.nodes(data=True) if facts["value"]}
    assert {name: layout for name, layout in values.items() if ":" not in name} == {
        name: str(expansion.layout(name)) for name in values if ":" not in name
    }
    kinds = {type(fact) for _, facts in graph.nodes(data=True) for fact in facts.values()}
    assert kinds <= {str, int}


def test_a_trace_and_a_step_are_graphs_too(expansion: sl.Expansion, step: sl.Step) -> None:
    traced = expansion.traced.to_networkx()
    assert {name for name, facts in traced.nodes(data=True) if facts["kind"] == "operator"} >= {
        node.name for node in expansion.traced.op_nodes
    }
    assert set(step.to_networkx()) == {node.name for node in step.local_graph.graph.nodes}


def test_a_graph_is_written_for_graphviz(step: sl.Step, tmp_path: Path) -> None:
    path = step.to_dot(tmp_path / "step.dot")
    read = pygraphviz.AGraph(path.read_text())
    assert set(read.nodes()) == set(step.to_networkx())
    assert [node for node in read.nodes() if node.attr["shape"] == "hexagon"]


def test_an_expansion_is_written_as_json(expansion: sl.Expansion, tmp_path: Path) -> None:
    told = json.loads(expansion.to_json(tmp_path / "expansion.json").read_text(encoding="utf-8"))
    assert (told["name"], told["mesh"], told["version"]) == (expansion.name, {"dp": 2, "tp": 2}, 1)
    assert [step["name"] for step in told["steps"]] == [step.name for step in expansion.steps]
    for written, layout in zip(told["inputs"], expansion.input_layouts, strict=True):
        assert sl.Layout.parse(written["layout"], expansion.mesh) == layout
    for written, step in zip(told["steps"], expansion.steps, strict=True):
        assert [sl.Layout.parse(each["need"], expansion.mesh) for each in written["operands"]] == [
            operand.need for operand in step.operands
        ]
        assert [each["sent_bytes_per_rank"] for each in written["collectives"]] == [
            found.sent_bytes_per_rank for found in step.collectives
        ]


def test_a_picture_is_a_figure_of_matplotlib(expansion: sl.Expansion, step: sl.Step, tmp_path: Path) -> None:
    for picture in (step.draw(), expansion.traced.draw()):
        figure = picture.figure()
        assert [told.get_text().removeprefix("● ") for told in figure.axes[0].texts] == [
            "\n".join(node.lines) for node in picture.record.nodes
        ]
    figure.savefig(tmp_path / "graph.png")
    assert (tmp_path / "graph.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(sl.SpmdLabError, match="only the picture of a graph"):
        step.operands[0].have.draw().figure()


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
