"""The plain records of pictures of graphs."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ClusterRecord", "EdgeRecord", "GraphRecord", "NodeRecord"]


@dataclass(frozen=True)
class NodeRecord:
    """A node of a picture: ``shape`` says what it is, ``axis`` colours it (-1: grey), ``lines`` label it.

    ``module`` is the path of the module that ran it; ``backward`` says in which half of the picture it stands;
    ``line_axes`` colours its lines one by one, where they name axes.
    """

    key: str
    shape: str
    lines: tuple[str, ...]
    axis: int = -1
    module: str = ""
    backward: bool = False
    line_axes: tuple[int, ...] = ()


@dataclass(frozen=True)
class EdgeRecord:
    """An edge of a picture.

    One that is ``far`` is drawn lightly across it, and does not decide where nodes stand; one that runs ``through``
    others, which the picture leaves out, takes their way.
    """

    tail: str
    head: str
    far: bool = False
    through: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClusterRecord:
    """A module, drawn around its nodes, and around the modules in it; ``key`` is its path."""

    key: str
    title: str
    keys: tuple[str, ...]
    children: tuple[ClusterRecord, ...] = ()


@dataclass(frozen=True)
class GraphRecord:
    """A picture of a graph; ``alt`` says it in words, ``remark`` what it leaves out.

    It runs from left to right, or ``downward``; one with ``halves`` has the backward beside the forward, running back.
    Its nodes stand where those of ``frame`` do, where it has one: a picture of which this is a part.
    """

    alt: str
    downward: bool
    nodes: tuple[NodeRecord, ...]
    edges: tuple[EdgeRecord, ...]
    halves: bool = False
    clusters: tuple[ClusterRecord, ...] = ()
    remark: str = ""
    frame: GraphRecord | None = None
