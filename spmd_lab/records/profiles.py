"""A profile as a record, and so as text, HTML and a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.show import profile_view
from spmd_lab.show.profile_view import BarRecord, NodeRecord, ProfileRecord, RankTimeRecord
from spmd_lab.show.run_text import time_text

if TYPE_CHECKING:
    from spmd_lab.run.profile import NodeTime, Profile
    from spmd_lab.show.picture import Picture

__all__ = ["profile_html", "profile_text", "timeline"]


def profile_text(profile: Profile) -> str:
    """A profile as text."""
    return profile_view.profile_text(_record(profile))


def profile_html(profile: Profile) -> str:
    """A profile as a fragment of HTML."""
    return profile_view.profile_html(_record(profile))


def timeline(profile: Profile) -> Picture:
    """The timeline of each rank."""
    return profile_view.timeline(_record(profile))


def _record(profile: Profile) -> ProfileRecord:
    return ProfileRecord(
        name=profile.name,
        mesh=str(profile.mesh),
        found=profile.found,
        repeats=profile.repeats,
        ranks=[
            RankTimeRecord(
                each.rank,
                each.run_us,
                each.compute_us,
                each.issue_us,
                each.wait_us,
                each.waited_us,
                each.kept_waiting_us,
            )
            for each in profile.ranks
        ],
        nodes=_nodes(profile),
        bars=[_bar(profile, each) for each in profile.nodes],
        straggler=_straggler(profile),
    )


def _nodes(profile: Profile) -> list[NodeRecord]:
    """The nodes of all ranks, those of one name together."""
    found: dict[str, dict[int, NodeTime]] = {}
    for each in profile.nodes:
        found.setdefault(each.node, {})[each.rank] = each
    records = []
    for name, by_rank in found.items():
        first = next(iter(by_rank.values()))
        column = [by_rank.get(each.rank) for each in profile.ranks]
        records.append(
            NodeRecord(
                node=name,
                step=first.step,
                what=f"{first.kind} {first.collective}" if first.collective else first.op,
                times=[None if each is None else each.time_us for each in column],
                waited=[None if each is None else each.waited_us for each in column],
                line=first.line,
            )
        )
    return records


def _bar(profile: Profile, each: NodeTime) -> BarRecord:
    axis = each.collective.rstrip(")").rpartition(" ")[2].rpartition("(")[2]
    position = profile.mesh.axes.index(axis) if axis in profile.mesh.axes else -1
    waited = min(each.waited_us, each.shown_us)
    return BarRecord(each.rank, each.start_us, each.shown_us, waited, position, each.phase == "backward")


def _straggler(profile: Profile) -> str:
    found = profile.straggler
    if found is None:
        return "no rank keeps the others waiting for a tenth of a run"
    told = (
        f"straggler: rank {found.rank} keeps others waiting {time_text(found.waited_us)} a run ({found.share:.0%}); "
        f"step {found.step} takes {time_text(found.excess_us)} longer there than elsewhere"
    )
    return f"{told}, {found.line}" if found.line else told
