"""The table of collectives answers questions, and its answers add up."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

import spmd_lab as sl
from spmd_lab.explain import CollectiveTable


@pytest.fixture(scope="module")
def table(expansion: sl.Expansion) -> CollectiveTable:
    """Of a head that is divided at rest too, so that there is more than one kind."""
    params = sl.colwise("**.up", axis="tp") | sl.rowwise("**.down", axis="tp") | {"head.weight": "o/dp i"}
    return sl.expand(expansion.traced, expansion.mesh, batch="dp", params=params).collectives


def test_a_table_is_a_sequence_that_does_not_change(table: CollectiveTable) -> None:
    assert list(table)[1] is table[1]
    assert isinstance(table[2:5], CollectiveTable)
    assert len(table[2:5]) == 3
    assert table[-1] in table
    assert table == CollectiveTable(list(table))
    assert hash(table) == hash(CollectiveTable(table))
    with pytest.raises(AttributeError):
        table.rows = ()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "condition", [{"kind": "all_reduce"}, {"axis": "tp"}, {"phase": "forward"}, {"module": "head"}]
)
def test_where_keeps_those_that_fit(table: CollectiveTable, condition: dict[str, str]) -> None:
    (name, value), kept = next(iter(condition.items())), table.where(**condition)
    read = {
        "kind": lambda each: each.kind,
        "phase": lambda each: each.phase,
        "axis": lambda each: each.axes[0],
        "module": lambda each: each.source.module,
    }[name]
    assert list(kept) == [each for each in table if read(each) == value]
    assert 0 < len(kept) < len(table)


def test_conditions_are_joined_by_and(table: CollectiveTable) -> None:
    both = table.where(kind="all_reduce", axis="dp", phase="backward")
    assert list(both) == [
        each for each in table if (each.kind, each.axes, each.phase) == ("all_reduce", ("dp",), "backward")
    ]
    assert table.where() == table


def test_a_module_is_a_prefix_of_components(table: CollectiveTable) -> None:
    source = table[0].source
    assert source is not None
    moved = CollectiveTable(
        replace(table[0], source=replace(source, module=module)) for module in ("blocks.1", "blocks.1.q", "blocks.10")
    )
    assert [each.source.module for each in moved.where(module="blocks.1")] == ["blocks.1", "blocks.1.q"]
    assert len(moved.where(module="blocks")) == 3
    assert len(moved.where(module="block")) == 0


@pytest.mark.parametrize("key", ["source", "kind", "axis", "phase", "module", "step"])
def test_groups_hold_everything_once_the_largest_first(table: CollectiveTable, key: str) -> None:
    groups = table.by(key)
    assert sum(group.count for group in groups.values()) == len(table)
    assert sum(group.sent_bytes_per_rank for group in groups.values()) == table.total("sent_bytes_per_rank")
    assert sum(group.payload_bytes for group in groups.values()) == table.total("payload_bytes")
    sent = [group.sent_bytes_per_rank for group in groups.values()]
    assert sent == sorted(sent, reverse=True)
    assert all(groups[name].key == name for name in groups)


def test_groups_by_line_can_be_looked_up_in_the_expansion(expansion: sl.Expansion) -> None:
    for place, group in expansion.collectives.by("source").items():
        found = expansion[place]
        steps = {step.name for step in (found if isinstance(found, list) else [found])}
        assert {each.step for each in group.collectives} <= steps


def test_files_of_one_name_are_told_apart(table: CollectiveTable) -> None:
    source = table[0].source
    assert source is not None
    two = CollectiveTable(replace(table[0], source=replace(source, file=f"{place}/model.py")) for place in ("a", "b"))
    assert set(two.by("source")) == {f"a/model.py:{source.line}", f"b/model.py:{source.line}"}


@pytest.mark.parametrize(
    ("question", "hint"),
    [
        (lambda table: table.where(kind="allreduce"), "did you mean 'all_reduce'"),
        (lambda table: table.where(axis="tq"), "did you mean 'tp'"),
        (lambda table: table.where(phase="forwards"), "did you mean 'forward'"),
        (lambda table: table.by("sources"), "did you mean 'source'"),
        (lambda table: table.total("bytes"), "did you mean 'payload_bytes'"),
    ],
)
def test_unknown_words_are_refused(table: CollectiveTable, question: object, hint: str) -> None:
    with pytest.raises(sl.SpmdLabError, match=hint):
        question(table)  # type: ignore[operator]


def test_the_text_is_a_short_table(table: CollectiveTable) -> None:
    lines = repr(table).splitlines()
    assert lines[0].startswith(f"{len(table)} collectives, ")
    assert lines[1].split()[:4] == ["phase", "collective", "payload", "sent"]
    assert len(lines) == 23
    assert lines[-1] == f"  ... {len(table) - 20} more"
    assert repr(table[:0]) == "no collectives"
    assert repr(table[:0].by("axis")) == "no collectives by axis"


def test_a_frame_has_a_row_for_each(table: CollectiveTable) -> None:
    pytest.importorskip("pandas")
    frame = table.to_frame()
    assert len(frame) == len(table)
    assert frame["sent_bytes_per_rank"].sum() == table.total("sent_bytes_per_rank")
    assert list(frame["have"]) == [str(each.have) for each in table]
    assert list(table[:0].to_frame().columns) == list(frame.columns)


def test_a_missing_pandas_is_named(table: CollectiveTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(sl.SpmdLabError, match=r"needs pandas[\s\S]*pip install pandas"):
        table.to_frame()
