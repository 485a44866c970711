"""Measured times of a program on real ranks: of every node and collective, and who waits for whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from spmd_lab.explain.frames import frame_of

if TYPE_CHECKING:
    from spmd_lab.mesh import Mesh
    from spmd_lab.show.picture import Picture

__all__ = ["NodeTime", "Profile", "RankTime", "Straggler"]

Kind = Literal["compute", "issue", "wait"]


@dataclass(frozen=True)
class NodeTime:
    """One node on one rank.

    Parameters
    ----------
    rank : int
        The rank.
    node, step, op, phase, line : str
        The node, its step and operator; forward or backward, and the user's line, where they are known.
    kind : str
        "compute"; "issue" where a collective starts, "wait" where its result is waited for.
    collective : str
        The collective of an issue or a wait: ``all_reduce(sum, dp)``.
    start_us : float
        When it started in the run that is shown, counted from when the ranks had met.
    time_us : float
        How long it took: the median of all runs.
    shown_us : float
        How long it took in the run that is shown.
    waited_us : float
        How much of ``time_us`` went by before the last rank of the group had come to the collective.
    last_rank : int or None
        The rank that came last in most runs.
    """

    rank: int
    node: str
    step: str
    op: str
    phase: str
    line: str
    kind: Kind
    collective: str
    start_us: float
    time_us: float
    shown_us: float
    waited_us: float
    last_rank: int | None


@dataclass(frozen=True)
class RankTime:
    """One rank: medians over the runs.

    Parameters
    ----------
    rank : int
        The rank.
    run_us, compute_us, issue_us, wait_us : float
        A run; in it: computing, starting collectives, waiting for their results.
    waited_us : float
        How much of it all it waited for ranks that came later.
    kept_waiting_us : float
        How long others waited because it came last: of each collective, the one that waited longest.
    """

    rank: int
    run_us: float
    compute_us: float
    issue_us: float
    wait_us: float
    waited_us: float
    kept_waiting_us: float


@dataclass(frozen=True)
class Straggler:
    """The rank that the others wait for.

    Parameters
    ----------
    rank : int
        The rank.
    waited_us : float
        How long others waited for it in a run.
    share : float
        The same as a part of the run.
    step, line : str
        The step that takes so much longer on it than on the others, and its line.
    excess_us : float
        How much longer.
    """

    rank: int
    waited_us: float
    share: float
    step: str
    line: str
    excess_us: float


@dataclass(frozen=True, repr=False)
class Profile:
    """What was measured; prints itself as a table, in a notebook with a timeline of each rank.

    Every node is run and timed by itself, which adds some microseconds to each; on a GPU each is waited for.

    Parameters
    ----------
    name : str
        What was traced.
    mesh : Mesh
        The mesh.
    found : str
        What the ranks ran on.
    repeats : int
        How many runs were measured.
    ranks : tuple of RankTime
        By rank.
    nodes : tuple of NodeTime
        By rank, then in the order of its graph.
    straggler : Straggler or None
        The rank that others wait for, beyond what it waits for them, a tenth of a run or longer, if there is one.
    """

    name: str
    mesh: Mesh
    found: str
    repeats: int
    ranks: tuple[RankTime, ...]
    nodes: tuple[NodeTime, ...]
    straggler: Straggler | None

    @property
    def collectives(self) -> tuple[NodeTime, ...]:
        """The issues and waits of collectives."""
        return tuple(each for each in self.nodes if each.kind != "compute")

    def to_frame(self) -> Any:
        """A ``pandas.DataFrame`` with one row per rank and node.

        Raises
        ------
        SpmdLabError
            If pandas is not installed.
        """
        return frame_of((vars(each) for each in self.nodes), list(NodeTime.__dataclass_fields__))

    def timeline(self) -> Picture:
        """A picture of the run whose length is the median: each rank's nodes along the clock, and its waits."""
        from spmd_lab.records.profiles import timeline

        return timeline(self)

    def __repr__(self) -> str:
        from spmd_lab.records.profiles import profile_text

        return profile_text(self)

    def _repr_html_(self) -> str:
        from spmd_lab.records.profiles import profile_html

        return profile_html(self)
