"""Pictures of graphs: they say what the graph is, and save themselves."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import jsonschema
import networkx
import pygraphviz
import pytest
import torch
from torch import nn

import spmd_lab as sl
from spmd_lab.records.drawing import Part, drawing, graph_record
from spmd_lab.records.graphs import step_graph_record
from spmd_lab.records.json_schema import SCHEMA
from spmd_lab.records.program_graphs import traced_names
from spmd_lab.show.graph_folding import VISIBLE
from spmd_lab.show.graph_layout import lay_out
from spmd_lab.show.graph_records import EdgeRecord, GraphRecord, NodeRecord
from spmd_lab.show.graph_selection import cut
from spmd_lab.show.graph_shapes import corners, radius
from spmd_lab.show.graph_spans import spans
from spmd_lab.show.graph_svg import graph_svg
from spmd_lab.show.picture import Picture
from spmd_lab.show.theme import AXIS_COLOURS, BACKWARD, FORWARD, SYMBOLS
from spmd_lab.show.units import bytes_text
from tests.show.models import Unlike, expanded

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from spmd_lab.drawn import Drawn
    from spmd_lab.show.graph_layout import Box
    from spmd_lab.show.graph_records import ClusterRecord

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


def drawn(value: Drawn, program: sl.Program | None = None, **part: Any) -> GraphRecord:
    return drawing(value, Part(**part), program)


def clusters_of(clusters: Sequence[ClusterRecord]) -> list[ClusterRecord]:
    return [found for each in clusters for found in (each, *clusters_of(each.children))]


def test_a_small_graph_shows_every_node(expansion: sl.Expansion) -> None:
    record = drawn(expansion.traced, once=False)
    keys = {node.key for node in record.nodes}
    assert {node.name for node in expansion.traced.op_nodes} <= keys
    assert {f"output:{found.name}" for found in expansion.traced.outputs} <= keys
    labels = texts(expansion.traced.draw(once=False).svg)
    operands = [node for node in record.nodes if node.shape == "operand"]
    assert len(operands) == len(expansion.traced.inputs)
    assert {line for node in record.nodes for line in node.lines} <= set(labels)
    assert all(edge.tail in keys and edge.head in keys for edge in record.edges)


def test_modules_are_boxes_around_their_nodes(expansion: sl.Expansion) -> None:
    record = drawn(expansion.traced, once=False)
    found = {each.key: each for each in clusters_of(record.clusters)}
    assert {"blocks.0", "blocks.0.up", "blocks.1.down", "head"} <= set(found)
    assert found["blocks.0.up"].title == "up"
    assert {"blocks_0_up_weight", "output:grad(blocks.0.up.weight)"} <= set(found["blocks.0.up"].keys)
    sources = {node.name: expansion.traced.source(node) for node in expansion.traced.op_nodes}
    for path, cluster in found.items():
        assert all(sources[key].module == path for key in cluster.keys if key in sources)
    lines = {node.key: node.lines for node in record.nodes}
    assert lines["blocks_0_up_weight"][0] == "weight"
    assert lines["output:grad(blocks.0.up.weight)"] == ("grad(weight)",)


def test_a_box_lies_around_all_that_is_in_it_and_nothing_else(expansion: sl.Expansion) -> None:
    record = drawn(expansion.program)
    placed = lay_out(record)
    boxes = {box.node.key: box for box in placed.boxes}
    assert set(boxes) == {node.key for node in record.nodes}
    for one in boxes.values():
        assert 0 <= one.x - one.width / 2 < one.x + one.width / 2 <= placed.width
        assert 0 <= one.y - one.height / 2 < one.y + one.height / 2 <= placed.height
        for other in boxes.values():
            apart = max(
                abs(one.x - other.x) - (one.width + other.width) / 2,
                abs(one.y - other.y) - (one.height + other.height) / 2,
            )
            assert one is other or apart > 0
    for cluster in clusters_of(record.clusters):
        own = {key for each in clusters_of([cluster]) for key in each.keys}
        inside = {
            key
            for frame in placed.frames
            if frame.title == cluster.title
            for key, box in boxes.items()
            if frame.x <= box.x <= frame.x + frame.width and frame.y <= box.y <= frame.y + frame.height
        }
        assert own <= inside
        if cluster.title in ("norm", "head"):
            assert {key for key in inside if key.startswith(("head", "norm"))} <= own


def test_blocks_that_repeat_are_drawn_once() -> None:
    expansion = expanded(12)
    traced = drawn(expansion.traced)
    (_, block) = (each for each in clusters_of(traced.clusters) if each.title.startswith("blocks."))
    assert block.title == "blocks.1 – blocks.11 × 11"  # the first computes no gradient of what it takes
    whole = graph_record(expansion.traced)
    hidden = len(whole.nodes) - len(traced.nodes)
    inside = sum(len(each.keys) for each in clusters_of([block]))
    assert hidden == 10 * inside
    assert f"{hidden} nodes hidden: modules that repeat are drawn once" in traced.remark
    assert f"{hidden} nodes of it hidden" in expansion.traced.draw().alt
    assert traced.remark in texts(expansion.traced.draw().svg)
    near = networkx.DiGraph((edge.tail, edge.head) for edge in traced.edges if not edge.far)
    assert networkx.is_directed_acyclic_graph(near)
    keys = {node.key for node in traced.nodes}
    assert all(edge.tail in keys and edge.head in keys for edge in traced.edges)


class Weighted(nn.Module):
    """Blocks in a list of which one differs, and two modules whose names alone are numbered."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(5))
        self.blocks[2] = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm2(self.norm1(x))


def test_what_differs_or_stands_in_no_list_is_not_drawn_once() -> None:
    traced = sl.trace(Weighted(), torch.randn(4, 16), backward=False)
    titles = [each.title for each in clusters_of(drawn(traced).clusters)]
    assert {"blocks.0, blocks.1 × 2", "blocks.2", "blocks.3, blocks.4 × 2", "norm1", "norm2"} <= set(titles)
    assert not [title for title in clusters_of(drawn(traced, once=False).clusters) if "×" in title.title]


class Linked(nn.Module):
    """Blocks of equal operators that are linked in different ways."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Sum(squared=False), Sum(squared=True)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks[1](self.blocks[0](x))


class Sum(nn.Module):
    def __init__(self, squared: bool) -> None:
        super().__init__()
        self.squared = squared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, z = x.sin(), x.cos()
        return y * y + z if self.squared else y * z + y


def test_equal_operators_that_are_linked_differently_are_not_the_same() -> None:
    titles = [each.title for each in clusters_of(drawn(sl.trace(Linked(), torch.randn(4)), hops=1).clusters)]
    assert not [title for title in titles if "×" in title]


def test_depth_closes_modules(expansion: sl.Expansion) -> None:
    record = drawn(expansion.program, depth=1)
    assert record.clusters == ()
    closed = [node for node in record.nodes if node.shape == "module"]
    assert {node.lines[0] for node in closed} >= {"blocks.0", "blocks.1", "head"}
    assert {node.lines[0] for node in closed if node.backward} == {node.lines[0] for node in closed}
    told = " ".join(line for node in closed for line in node.lines[2:])
    counts = [int(count or 1) for count in re.findall(r"[●■▼◆] (\d+ )?(?:all|reduce)", told)]
    outside = sum(node.axis >= 0 for node in record.nodes)
    assert sum(counts) + outside == len(expansion.program.collectives)
    operators = sum(int(found) for node in closed for found in re.findall(r"^(\d+) operator", node.lines[1]))
    whole = graph_record(expansion.program)
    assert operators == sum(node.shape in ("op", "local") and node.module != "" for node in whole.nodes)
    two = drawn(expansion.program, depth=2)
    assert {each.key for each in clusters_of(two.clusters)} == {"blocks.0", "blocks.1", "head"}
    assert len(record.nodes) < len(two.nodes) < len(drawn(expansion.program).nodes)
    svg = expansion.program.draw(depth=1).svg
    assert all(AXIS_COLOURS[axis] in svg for node in closed for axis in node.line_axes if axis >= 0)


def test_a_large_graph_is_closed_until_it_fits() -> None:
    program = expanded(module=Unlike(30)).program
    whole = graph_record(program)
    assert len(whole.nodes) > 3 * VISIBLE
    record = drawn(program)
    assert VISIBLE / 2 < len(record.nodes) <= VISIBLE
    assert len(record.nodes) == len(lay_out(record).boxes)
    assert f"{len(whole.nodes) - sum(node.shape != 'module' for node in record.nodes):,} nodes hidden" in record.remark


def test_what_lies_around_a_node_is_what_is_near(expansion: sl.Expansion) -> None:
    name = next(step.name for step in expansion.steps if step.collectives)
    graph = networkx_of_record(graph_record(expansion.program))
    for hops in (0, 1, 3):
        found = drawn(expansion.program, around=name, hops=hops)
        start = f"local_{name}"
        near = networkx.single_source_shortest_path_length(graph.to_undirected(), start, cutoff=hops)
        assert {node.key for node in found.nodes} == set(near)
    assert drawn(expansion.program, around="wait_tensor").nodes == drawn(expansion.program, around="all_reduce").nodes
    resolve = expansion.steps[-1].name
    assert any(node.axis >= 0 for node in drawn(expansion.program, around=resolve, hops=0).nodes)
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
    whole = networkx_of_record(graph_record(expansion.program))
    record = drawn(expansion.program, only="collectives", once=False)
    assert len(record.nodes) == len(expansion.program.collectives)
    loud = {node.key for node in record.nodes}
    reached = networkx.DiGraph((one, two) for one in loud for two in networkx.descendants(whole, one) & loud)
    assert {(edge.tail, edge.head) for edge in record.edges} == set(networkx.transitive_reduction(reached).edges)
    assert "it has no collectives" in expansion.traced.draw(only="collectives").alt


# --- a trace beside its program -------------------------------------------------------------------


@pytest.mark.parametrize("part", [{}, {"depth": 1}, {"once": False}, {"around": "addmm", "hops": 2}])
def test_a_node_has_one_place_in_trace_and_program(expansion: sl.Expansion, part: dict[str, Any]) -> None:
    program = expansion.program
    one = lay_out(drawn(expansion.traced, program, **part))
    other = lay_out(drawn(program, **part))
    places = {box.node.key: (box.x, box.y, box.width, box.height) for box in other.boxes}
    shared = [box for box in one.boxes if box.node.key in places]
    assert len(shared) == len(one.boxes) >= 8 or "around" in part
    assert [(box.x, box.y, box.width, box.height) for box in shared] == [places[box.node.key] for box in shared]
    assert (one.width, one.height) == (other.width, other.height)
    assert {(frame.title, frame.x, frame.y) for frame in one.frames} <= {
        (frame.title, frame.x, frame.y) for frame in other.frames
    }


def test_a_trace_beside_its_program_is_the_trace(expansion: sl.Expansion) -> None:
    alone = graph_record(expansion.traced)
    names = traced_names(expansion.program)
    placed = drawn(expansion.traced, expansion.program, once=False)
    assert {node.key for node in placed.nodes} == {names[node.key] for node in alone.nodes}
    assert {(edge.tail, edge.head) for edge in placed.edges} == {
        (names[edge.tail], names[edge.head]) for edge in alone.edges
    }
    assert not [node for node in placed.nodes if node.axis >= 0]
    passed = [key for edge in placed.edges for key in edge.through]
    loud = {node.key for node in graph_record(expansion.program).nodes if node.axis >= 0}
    assert set(passed) & loud
    curves = lay_out(placed).curves
    assert len(curves) == sum(not edge.far for edge in placed.edges)
    assert all(len(curve.points) % 3 == 1 for curve in curves)


def test_a_rewritten_program_has_room_for_what_is_gone(expansion: sl.Expansion) -> None:
    program = expansion.program.rewrite("lean", "share", "overlap", "bucket")
    one, other = drawn(expansion.traced, program), drawn(program)
    places = {box.node.key: (box.x, box.y) for box in lay_out(other).boxes}
    shared = [box for box in lay_out(one).boxes if box.node.key in places]
    assert len(shared) > 20
    assert [(box.x, box.y) for box in shared] == [places[box.node.key] for box in shared]


def test_only_a_trace_is_drawn_beside_its_own_program(expansion: sl.Expansion, step: sl.Step) -> None:
    other = expanded()
    for value in (step, expansion.program, other.traced):
        with pytest.raises(sl.SpmdLabError, match="only beside its own"):
            value.draw(beside=expansion.program)


def test_the_backward_stands_beside_the_forward_and_runs_back(expansion: sl.Expansion) -> None:
    placed = lay_out(drawn(expansion.traced))
    halves: dict[bool, list[Box]] = {False: [], True: []}
    for box in placed.boxes:
        halves[box.node.backward].append(box)
    assert max(box.x for box in halves[False]) < min(box.x for box in halves[True])
    assert [heading.text for heading in placed.headings] == ["forward ↓", "backward ↑"]
    places = {box.node.key: box for box in placed.boxes}
    for edge in drawn(expansion.traced).edges:
        if not edge.far:
            tail, head = places[edge.tail], places[edge.head]
            assert (head.y < tail.y) == tail.node.backward
    svg = expansion.traced.draw().svg
    assert FORWARD in svg
    assert BACKWARD in svg


def test_each_kind_of_collective_has_an_outline_of_its_own() -> None:
    outlines = []
    for kind in SYMBOLS:
        node = NodeRecord("c", kind, (f"{kind}(tp)",), axis=1)
        svg = graph_svg(GraphRecord("one", False, (node,), ()))
        outlines.append(re.sub(r"[\d.,-]+", "0", svg.partition("<text")[0]) + str(corners(node, 9.0, 9.0)))
        assert AXIS_COLOURS[1] in svg
        assert f"{kind}(tp)" in svg
    assert radius(NodeRecord("c", "all_reduce", ()), 36) == 18
    assert radius(NodeRecord("c", "all_gather", ()), 36) == 0
    assert len({corners(NodeRecord("c", kind, ()), 9.0, 9.0) is None for kind in SYMBOLS}) == 2
    assert len(set(outlines)) == len(SYMBOLS)


def test_a_graph_without_modules_is_cut_and_says_so() -> None:
    nodes = tuple(NodeRecord(f"n{index}", "op", ("relu",)) for index in range(12))
    edges = tuple(EdgeRecord(one.key, two.key) for one, two in pairwise(nodes))
    record = cut(GraphRecord("a chain", True, nodes, edges), limit=5)
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
    lying = [facts["layout"] for _, facts in step.to_networkx().nodes(data=True) if facts["kind"] == "input"]
    assert lying == [str(operand.have) for operand in step.operands]


def test_a_graph_is_written_for_graphviz(step: sl.Step, tmp_path: Path) -> None:
    path = step.to_dot(tmp_path / "step.dot")
    read = pygraphviz.AGraph(path.read_text())
    assert set(read.nodes()) == set(step.to_networkx())
    assert [node for node in read.nodes() if node.attr["shape"] == "hexagon"]


def test_an_expansion_is_written_as_json(expansion: sl.Expansion, tmp_path: Path) -> None:
    told = json.loads(expansion.to_json(tmp_path / "expansion.json").read_text(encoding="utf-8"))
    jsonschema.validate(told, SCHEMA)
    for broken in ({**told, "version": 2}, {**told, "more": 1}, {key: told[key] for key in told if key != "steps"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, SCHEMA)
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
    for picture in (step.draw(), expansion.traced.draw(), expansion.program.draw(depth=1)):
        figure = picture.figure()
        told = [each.get_text().removeprefix("● ") for each in figure.axes[0].texts]
        titles = [each.title for each in clusters_of(picture.record.clusters)]
        assert told[: len(picture.record.nodes)] == ["\n".join(node.lines) for node in picture.record.nodes]
        assert set(titles) <= set(told)
        assert picture.record.remark in (*told, "")
    figure.savefig(tmp_path / "graph.png")
    assert (tmp_path / "graph.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(sl.SpmdLabError, match="only the picture of a graph"):
        step.operands[0].have.draw().figure()


def test_what_backward_reads_of_forward_runs_lightly_across(expansion: sl.Expansion) -> None:
    """Edges that span the whole picture would take Graphviz minutes."""
    record = drawn(expansion.traced, once=False)
    backward = {node.key: node.backward for node in record.nodes}
    assert any(edge.far for edge in record.edges)
    for edge in record.edges:
        assert edge.far == (backward[edge.head] and not backward[edge.tail])
    for node in expansion.traced.op_nodes:
        assert backward[node.name] == (expansion.traced.phase(node) == "backward")
    svg = expansion.traced.draw(once=False).svg
    assert svg.count("stroke-dasharray") == sum(edge.far for edge in record.edges)
    assert "dashed: what the backward reads of the forward" in texts(svg)


def test_drawing_looks_up_no_font_and_says_nothing(expansion: sl.Expansion, capfd: pytest.CaptureFixture[str]) -> None:
    for step in expansion.steps[:3]:
        step.draw()
    expansion.program.draw()
    assert capfd.readouterr() == ("", "")


def test_an_expansion_is_saved_as_its_program(expansion: sl.Expansion, tmp_path: Path) -> None:
    assert expansion.to_svg(tmp_path / "a.svg").read_text() == expansion.program.draw().svg
    assert expansion.to_dot(tmp_path / "a.dot").read_text() == expansion.program.to_dot(tmp_path / "b.dot").read_text()


def test_a_picture_is_saved(step: sl.Step, tmp_path: Path) -> None:
    path = step.draw().save(tmp_path / "step.svg")
    assert path.read_text() == step.draw().svg
    assert step.to_svg(tmp_path / "again.svg").read_text() == step.draw().svg
    with pytest.raises(sl.SpmdLabError, match=r"saved as SVG[\s\S]*step\.png[\s\S]*ends in \.svg"):
        step.draw().save(tmp_path / "step.png")
    with pytest.raises(sl.SpmdLabError, match="no folder"):
        step.draw().save(tmp_path / "nowhere" / "step.svg")


# --- graphs that are hard to draw -----------------------------------------------------------------


def parallel(x: torch.Tensor) -> torch.Tensor:
    return sum((x * factor for factor in range(200)), torch.zeros(()))


def test_what_is_read_many_rows_away_is_drawn_lightly() -> None:
    """All of these edges would keep Graphviz busy for minutes."""
    traced = sl.trace(parallel, torch.ones(2), backward=False)
    start = time.process_time()
    picture = traced.draw()
    assert time.process_time() - start < 5
    assert picture.record is not None
    assert len(picture.record.nodes) == VISIBLE + 1
    assert picture.alt.endswith("103 more are hidden")
    assert "dashed too: what is read many rows away" in texts(picture.svg)
    lengths = spans(picture.record)
    assert 300 < sum(lengths.values()) <= 600
    nearest = min(edge_length(picture.record, edge) for edge in picture.record.edges if edge.far)
    assert nearest >= max(lengths.values())
    few = sl.trace(lambda x: sum((x * factor for factor in range(9)), x), torch.ones(2), backward=False).draw()
    assert few.record is not None
    assert not [edge for edge in few.record.edges if edge.far]


def edge_length(record: GraphRecord, edge: EdgeRecord) -> int:
    """How far an edge runs where it is the only one that is not light."""
    others = tuple(replace(each, far=each.far and each != edge) for each in record.edges)
    return spans(replace(record, edges=others))[replace(edge, far=False)]


def test_a_wide_picture_is_scrolled_and_a_long_name_cut() -> None:
    nodes = tuple(NodeRecord(f"n{index}", "op", ("relu",)) for index in range(40))
    wide = Picture(graph_svg(GraphRecord("wide", True, nodes, ())), "wide")
    assert wide.width > 1400
    assert f"min-width:{0.7 * wide.width:.0f}px" in wide._repr_html_()
    assert wide._repr_html_().startswith('<div tabindex="0"')
    model = nn.Sequential()
    model.add_module("a" * 50 + "b" * 50, nn.Linear(4, 4))
    told = texts(sl.trace(model, torch.ones(2, 4), backward=False).draw().svg)
    assert "a" * 36 + "…" + "b" * 36 in told


def contrast(one: str, two: str) -> float:
    """The contrast of two colours, as WCAG computes it."""
    light, dark = sorted((luminance(one), luminance(two)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_every_text_stands_out_from_its_ground_on_white_and_on_black(expansion: sl.Expansion) -> None:
    grid = sl.Layout.parse("f32[8/dp, 4/tp]", expansion.mesh)
    change = sl.Layout.parse("f32[8/dp, 4]{sum: tp}", expansion.mesh)
    pictures = [expansion.program.draw(), expansion.program.draw(depth=1), expansion.steps[-1].draw()]
    pictures += [grid.draw(), change.draw()]
    fills = set()
    for picture in pictures:
        for element in ElementTree.fromstring(picture.svg).iter(f"{NAMESPACE}text"):
            colour = element.get("fill")
            fills.add(colour)
            if colour == "white":
                continue
            assert min(contrast(colour, "#FFFFFF"), contrast(colour, "#000000")) >= 4.5
        shapes = ElementTree.fromstring(picture.svg).iter(f"{NAMESPACE}rect")
        assert {shape.get("fill") for shape in shapes} <= {"none", FORWARD, BACKWARD, *AXIS_COLOURS}
    assert "white" in fills
    for ground in (FORWARD, BACKWARD, *AXIS_COLOURS):
        assert contrast("#FFFFFF", ground) >= 4.5
    assert contrast("#777777", "#FFFFFF") < 4.5
