"""The table of an expansion's collectives: an immutable sequence that can be asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, get_args, overload

from spmd_lab.collectives import CollectiveKind
from spmd_lab.errors import ArgumentError, expect, nearest
from spmd_lab.expand.values import Collective
from spmd_lab.explain.frames import frame_of
from spmd_lab.shown import Shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from spmd_lab.trace.values import Source

__all__ = ["CollectiveGroup", "CollectiveGroups", "CollectiveTable", "GroupKey"]

GroupKey = Literal["source", "kind", "axis", "phase", "module", "step"]
Quantity = Literal["sent_bytes_per_rank", "payload_bytes"]

_KINDS = get_args(CollectiveKind)
_PHASES = ("forward", "backward")


class CollectiveTable(Shown, Sequence[Collective]):
    """The collectives of an expansion, in the order of the program.

    Parameters
    ----------
    collectives : iterable of Collective
        What the table holds.

    Examples
    --------
    >>> from spmd_lab import Layout, Mesh
    >>> mesh = Mesh(tp=4)
    >>> have, need = Layout.parse("f32[8, 8]{sum: tp}", mesh), Layout.parse("f32[8, 8]", mesh)
    >>> one = Collective("all_reduce", ("tp",), 4, "sum", 256, 384, "forward", "relu", "mm", None, have, need)
    >>> table = CollectiveTable([one, one])
    >>> len(table), table.total("sent_bytes_per_rank"), len(table.where(kind="all_gather"))
    (2, 768, 0)
    >>> table.by("axis")["tp"].count
    2
    """

    __slots__ = ("_collectives",)

    def __init__(self, collectives: Iterable[Collective] = ()) -> None:
        self._collectives = tuple(collectives)

    def __len__(self) -> int:
        return len(self._collectives)

    def __iter__(self) -> Iterator[Collective]:
        return iter(self._collectives)

    @overload
    def __getitem__(self, index: int) -> Collective: ...
    @overload
    def __getitem__(self, index: slice) -> CollectiveTable: ...
    def __getitem__(self, index: int | slice) -> Collective | CollectiveTable:
        hint = "a position or a slice; .where(...) and .by(...) ask for others"
        expect(index, (SupportsIndex, slice), f"collectives[{index!r}]", hint)
        found = self._collectives[index]
        return CollectiveTable(found) if isinstance(found, tuple) else found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CollectiveTable) and self._collectives == other._collectives

    def __hash__(self) -> int:
        return hash(self._collectives)

    def where(
        self, kind: str | None = None, axis: str | None = None, phase: str | None = None, module: str | None = None
    ) -> CollectiveTable:
        """Those that fit every condition.

        Parameters
        ----------
        kind, axis, phase : str, optional
            ``"all_reduce"``, a mesh axis, ``"forward"`` or ``"backward"``.
        module : str, optional
            The path of a module; what runs inside it fits too (``"blocks.1"`` means ``blocks.1.q``, not ``blocks.10``).

        Raises
        ------
        ArgumentError
            If there is no such kind, axis or phase.
        """
        asked: dict[str, tuple[str | None, tuple[str, ...]]] = {"kind": (kind, _KINDS), "phase": (phase, _PHASES)}
        if self._collectives:
            asked["axis"] = axis, self._collectives[0].have.mesh.axes
        for name, (value, allowed) in asked.items():
            if value is not None:
                _check(name, value, allowed)
        expect("" if module is None else module, str, "module", "the path of a module, as text")
        return CollectiveTable(
            found
            for found in self._collectives
            if kind in (None, found.kind)
            and phase in (None, found.phase)
            and (axis is None or axis in found.axes)
            and (module is None or _inside(_module(found), module))
        )

    def by(self, key: GroupKey) -> CollectiveGroups:
        """Groups by one property, those that send most first.

        Parameters
        ----------
        key : str
            "source" (keys like ``gpt.py:17``), "kind", "axis", "phase", "module" or "step".

        Raises
        ------
        ArgumentError
            If ``key`` is none of these.
        """
        _check("key", key, get_args(GroupKey))
        key_of = _source_keys(self._collectives) if key == "source" else _KEYS[key]
        members: dict[str, list[Collective]] = {}
        for found in self._collectives:
            members.setdefault(key_of(found), []).append(found)
        groups = [CollectiveGroup(name, CollectiveTable(found)) for name, found in members.items()]
        return CollectiveGroups(key, sorted(groups, key=lambda group: -group.sent_bytes_per_rank))

    def total(self, quantity: Quantity = "sent_bytes_per_rank") -> int:
        """The sum of one quantity: "sent_bytes_per_rank" or "payload_bytes".

        Raises
        ------
        ArgumentError
            If there is no such quantity.
        """
        _check("quantity", quantity, get_args(Quantity))
        return sum(getattr(found, quantity) for found in self._collectives)

    def to_frame(self) -> Any:
        """A ``pandas.DataFrame`` with one row per collective.

        Raises
        ------
        SpmdLabError
            If pandas is not installed.
        """
        return frame_of((_row(found) for found in self._collectives), _COLUMNS)


@dataclass(frozen=True)
class CollectiveGroup:
    """Collectives that have one property in common.

    Parameters
    ----------
    key : str
        The common property.
    collectives : CollectiveTable
        Those that have it.
    """

    key: str
    collectives: CollectiveTable

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.collectives)

    @property
    def payload_bytes(self) -> int:
        """The sum of their messages."""
        return self.collectives.total("payload_bytes")

    @property
    def sent_bytes_per_rank(self) -> int:
        """What each rank sends for them."""
        return self.collectives.total("sent_bytes_per_rank")


class CollectiveGroups(Shown, Mapping[str, CollectiveGroup]):
    """Groups of collectives by one property, those that send most first.

    Parameters
    ----------
    by : str
        The property.
    groups : iterable of CollectiveGroup
        The groups, in order.
    """

    __slots__ = ("_groups", "by")

    def __init__(self, by: str, groups: Iterable[CollectiveGroup]) -> None:
        self.by = by
        self._groups = {group.key: group for group in groups}

    def __getitem__(self, key: str) -> CollectiveGroup:
        return self._groups[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)


def _check(argument: str, value: object, allowed: Iterable[str]) -> None:
    if not isinstance(value, str) or value not in tuple(allowed):
        raise ArgumentError(
            f"there is no {argument} {value!r}", argument=f"{argument}={value!r}", hint=nearest(str(value), allowed)
        )


def _module(found: Collective) -> str:
    return found.source.module if found.source else ""


def _inside(path: str, module: str) -> bool:
    return not module or path == module or path.startswith(f"{module}.")


_KEYS: dict[str, Callable[[Collective], str]] = {
    "kind": lambda found: found.kind,
    "axis": lambda found: ", ".join(found.axes),
    "phase": lambda found: found.phase,
    "module": _module,
    "step": lambda found: found.step,
}


def _source_keys(collectives: Sequence[Collective]) -> Callable[[Collective], str]:
    """``gpt.py:17``, with the whole path where two files have one name."""
    files: dict[str, set[str]] = {}
    for found in collectives:
        if found.source:
            files.setdefault(found.source.place, set()).add(found.source.file)

    def key(found: Collective) -> str:
        source: Source | None = found.source
        if source is None:
            return ""
        return source.place if len(files[source.place]) == 1 else f"{source.file}:{source.line}"

    return key


_COLUMNS = (
    "phase", "kind", "axes", "group_size", "reduce_op", "payload_bytes", "sent_bytes_per_rank", "step", "operand",
    "have", "need", "source", "module",
)  # fmt: skip


def _row(found: Collective) -> tuple[object, ...]:
    return (
        found.phase, found.kind, ", ".join(found.axes), found.group_size, found.reduce_op, found.payload_bytes,
        found.sent_bytes_per_rank, found.step, found.operand, str(found.have), str(found.need),
        str(found.source) if found.source else None, _module(found),
    )  # fmt: skip
