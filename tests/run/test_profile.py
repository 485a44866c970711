"""Measured times: who waits for whom, in numbers, words and a picture."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
import torch

import spmd_lab as sl
from spmd_lab.errors import ArgumentError
from spmd_lab.run.program_requests import ProgramRequest
from spmd_lab.run.timed_run import Measured, Timing
from spmd_lab.run.waits import profile_of
from tests.run import odd_operators
from tests.run.saved_cases import program_of

if TYPE_CHECKING:
    from spmd_lab.run.profile import Profile


@pytest.fixture(scope="module")
def late(ranks: sl.Ranks) -> Profile:
    """Rank 1 lingers for a fifth of a second in each run."""
    ranks.run(odd_operators.define)
    with odd_operators.rule_of(odd_operators.linger):
        program = odd_operators.program_of(odd_operators.linger)
    return ranks.profile(program, torch.tensor([0.0, 0.0, 0.2, 0.2]), repeats=3)


def test_the_straggler_and_the_wait_are_named(late: Profile) -> None:
    found = late.straggler
    assert found is not None
    assert (found.rank, found.step) == (1, "linger")
    assert 150_000 < found.waited_us < 400_000
    assert 150_000 < found.excess_us < 400_000
    assert found.share > 0.5
    assert "op(x * 1.0).sum()" in found.line
    waits = [each for each in late.nodes if each.kind == "wait"]
    assert [each.rank for each in waits] == [0, 1]
    assert waits[0].waited_us > 150_000 > 50_000 > waits[1].waited_us
    assert {each.last_rank for each in waits} == {1}
    assert {each.collective for each in waits} == {"all_reduce(sum, dp)"}
    assert late.ranks[0].waited_us > 150_000 > late.ranks[0].compute_us
    assert late.ranks[1].compute_us > 150_000
    assert late.ranks[1].kept_waiting_us == found.waited_us


def test_it_prints_itself(late: Profile) -> None:
    told = repr(late).splitlines()
    assert "on dp=2: the median of 3 runs on 2 ranks" in told[0]
    assert told[1].split()[:2] == ["rank", "a"]
    assert re.match(r"straggler: rank 1 keeps others waiting (1[5-9]|2)\d* ms a run", told[4])
    assert "step linger takes" in told[4]
    assert {line.split()[0] for line in told[7:9]} == {"linger", "out"}
    page = late._repr_html_()
    assert "straggler: rank 1" in page
    assert "data:image/svg+xml" in page


def test_the_timeline_is_a_picture_of_every_node(late: Profile) -> None:
    picture = late.timeline()
    root = ElementTree.fromstring(picture.svg)
    bars = [each for each in root.iter() if each.tag.endswith("rect")]
    waits = [each for each in late.nodes if each.waited_us]
    assert len(bars) == len(late.nodes) + len(waits)
    assert picture.alt.startswith("timeline of 2 ranks: straggler: rank 1")


def test_one_row_per_rank_and_node(late: Profile) -> None:
    frame = late.to_frame()
    assert len(frame) == len(late.nodes)
    assert list(frame.columns) == [each.name for each in dataclasses.fields(late.nodes[0])]
    with pytest.raises(dataclasses.FrozenInstanceError):
        late.repeats = 4  # type: ignore[misc]


def test_every_node_of_every_rank_is_measured(ranks: sl.Ranks) -> None:
    program = program_of(sl.Mesh(tp=2))
    found = ranks.profile(program, repeats=2)
    for rank in range(2):
        nodes = [each.name for each in program.for_rank(rank).graph.nodes if each.op == "call_function"]
        assert [each.node for each in found.nodes if each.rank == rank] == nodes
    assert {each.phase for each in found.nodes} == {"forward", "backward"}
    assert all(each.time_us > 0 for each in found.nodes)
    for each in found.ranks:
        assert each.run_us >= each.compute_us + each.issue_us + each.wait_us - 1000
    with pytest.raises(ArgumentError, match="0 runs after 1"):
        ranks.profile(program, repeats=0)


def invented(late_ns: int, machines: tuple[str, str]) -> Profile:
    """A profile of times that nobody measured: rank 1 is late by so much, and each node takes a microsecond."""
    program = sl.spmd_expand(lambda x: x.sum(), torch.ones(4), mesh=sl.Mesh(dp=2), batch="dp").program
    request = ProgramRequest.of(program, (), 2)
    measured = []
    for rank, machine in enumerate(machines):
        kinds = [node.name for node in program.for_rank(rank).graph.nodes]
        clock, starts, ends = rank * 7_000_000_000 * (machines[0] != machines[1]), [], []
        met = clock
        for name in kinds:
            starts.append(clock)
            clock += 1000
            if rank and name.startswith("sum"):
                clock += late_ns
            if not rank and name == "out":  # the wait, until the other has come
                clock += late_ns
            ends.append(clock)
        measured.append(Measured(machine, "cpu", (), (Timing(met, tuple(starts), tuple(ends)),), (0,) * len(kinds)))
    return profile_of(request, measured, "paper", {})


@pytest.mark.parametrize("machines", [("one", "one"), ("one", "another")])
def test_waits_are_what_the_clocks_say(machines: tuple[str, str]) -> None:
    found = invented(50_000, machines)
    assert found.straggler is not None
    assert found.straggler.rank == 1
    assert found.straggler.excess_us == 50.0
    assert 48.0 <= found.straggler.waited_us <= 50.0


def test_nobody_is_named_where_nobody_is_late() -> None:
    found = invented(0, ("one", "one"))
    assert found.straggler is None
    assert "no rank keeps the others waiting" in repr(found)
