"""The error that says which way of a rule is wrong, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from spmd_lab.errors import RuleError
from spmd_lab.torch_internals.operators import operator_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spmd_lab.mesh import Mesh
    from spmd_lab.prove import VerifyReport
    from spmd_lab.rules import Way
    from spmd_lab.torch_internals.operators import OpOverload

__all__ = ["Taken", "divergent", "wrong"]


class Taken(NamedTuple):
    """A way with its text."""

    text: str
    way: Way


def divergent(
    op: OpOverload, mesh: Mesh, taken: Sequence[Taken], report: VerifyReport, layouts: dict[str, object]
) -> RuleError:
    """The error for a program whose numbers are wrong."""
    first = report.first_divergence
    if first is None:
        return wrong(op, mesh, taken, "what is returned differs from one run to the next", layouts)
    if first.layout is not None:
        layouts[first.value] = first.layout
    at = "" if first.index is None else f" at {list(first.index)}"
    where = "" if first.rank is None else f" on rank {first.rank}"
    what = f"output{where}{at}: expected {first.expected}, got {first.got}; {first.reason}"
    return wrong(op, mesh, taken, what, layouts, first.rank, first.index, first.expected, first.got)


def wrong(
    op: OpOverload,
    mesh: Mesh,
    taken: Sequence[Taken],
    what: str,
    layouts: Mapping[str, object],
    *found: Any,
) -> RuleError:
    """The error that says which way is wrong, and where."""
    texts = list(dict.fromkeys(each.text for each in taken))
    together = " and ".join(repr(text) for text in texts)
    subject = ("the rule", f"the way {together}", f"the pair of ways {together}")[len(texts)]
    rank, index, expected, got = found or (None,) * 4
    return RuleError(
        f"{subject} for {operator_name(op)} is wrong on {mesh}: {what}",
        layouts=layouts,
        hint="what does each rank compute from these shards, and how do the results make up the whole?",
        way=texts[0] if texts else None,
        rank=rank,
        index=index,
        expected=expected,
        got=got,
    )
