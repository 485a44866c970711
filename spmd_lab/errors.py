"""Every error of this package: what happened, where, and what to try."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "ArgumentError",
    "ExpansionError",
    "LayoutError",
    "MeshError",
    "NotationError",
    "PatternError",
    "RankError",
    "RebuildError",
    "RewriteError",
    "RuleError",
    "SavingError",
    "SpmdLabError",
    "TraceError",
    "UnsupportedOperatorError",
    "VerificationError",
]


class SpmdLabError(Exception):
    """The base of every error that spmd_lab raises on purpose.

    Parameters
    ----------
    what : str
        One sentence: what is wrong.
    node : str, optional
        The node of the traced graph, with its operator.
    source : object, optional
        The line of the user's code (anything whose ``str`` is ``file:line: code``).
    argument : str, optional
        The argument that carries the mistake, as the user wrote it.
    layouts : mapping of str to object, optional
        The layouts involved, by the name of their tensor.
    hint : str, optional
        What to try.

    Attributes
    ----------
    steps : sequence
        The steps that were expanded before it, where an expansion fails on its way.

    Examples
    --------
    >>> print(SpmdLabError("no axis named 'tq'", argument="batch='tq'", hint="did you mean 'tp'?"))
    no axis named 'tq'
      argument: batch='tq'
      try: did you mean 'tp'?
    """

    def __init__(
        self,
        what: str,
        *,
        node: str | None = None,
        source: object | None = None,
        argument: str | None = None,
        layouts: Mapping[str, object] | None = None,
        hint: str | None = None,
    ) -> None:
        self.what = what
        self.node = node
        self.source = source
        self.argument = argument
        self.layouts = dict(layouts or {})
        self.hint = hint
        self.steps: Sequence[object] = ()
        super().__init__("\n".join(self._lines()))

    def _lines(self) -> list[str]:
        lines = [self.what]
        if self.node is not None:
            lines.append(f"  node: {self.node}")
        if self.source is not None:
            lines.append(f"  line: {self.source}")
        if self.argument is not None:
            lines.append(f"  argument: {self.argument}")
        lines.extend(f"  layout: {name}: {layout}" for name, layout in self.layouts.items())
        if self.hint is not None:
            lines.append(f"  try: {self.hint}")
        return lines

    def _render_traceback_(self) -> list[str]:
        """What IPython asks for: the user's lines alone, and what is wrong."""
        from spmd_lab.jupyter.errors import traceback_of

        return traceback_of(self)


class MeshError(SpmdLabError):
    """A mesh that cannot be, or an axis or rank that a mesh does not have."""


class LayoutError(SpmdLabError):
    """Placements that do not fit their tensor or their mesh."""


class NotationError(LayoutError):
    """Text that does not read as a layout."""


class ArgumentError(SpmdLabError):
    """An argument of a verb that fits neither the traced program nor the mesh."""


class PatternError(ArgumentError):
    """A pattern over names that matches nothing, is shadowed, or contradicts another."""


class TraceError(SpmdLabError):
    """A program that cannot be traced as one graph."""


class ExpansionError(SpmdLabError):
    """An operator whose layouts cannot be worked out, or come out wrong."""


class UnsupportedOperatorError(ExpansionError):
    """An operator that has no sharding rule."""


class RuleError(SpmdLabError):
    """A sharding rule that is wrong, or that cannot be registered.

    Attributes
    ----------
    way : str or None
        The way to run the operator that is wrong, as the notation has it.
    rank : int or None
        The first rank that is wrong.
    index : tuple of int or None
        The element, in the whole tensor.
    expected, got : object
        What should be there, and what is.
    """

    def __init__(
        self,
        what: str,
        *,
        argument: str | None = None,
        layouts: Mapping[str, object] | None = None,
        hint: str | None = None,
        way: str | None = None,
        rank: int | None = None,
        index: tuple[int, ...] | None = None,
        expected: object = None,
        got: object = None,
    ) -> None:
        super().__init__(what, argument=argument, layouts=layouts, hint=hint)
        self.way = way
        self.rank = rank
        self.index = index
        self.expected = expected
        self.got = got


class RebuildError(SpmdLabError):
    """Subgraphs that do not splice into one program."""


class RewriteError(SpmdLabError):
    """A pass that raises, or that makes of a program what is none.

    Attributes
    ----------
    pass_name : str
        The pass.
    rank : int
        The rank whose graph it was given.
    """

    def __init__(
        self, what: str, *, pass_name: str = "", rank: int = 0, node: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(what, node=node, argument=pass_name or None, hint=hint)
        self.pass_name = pass_name
        self.rank = rank


class RankError(SpmdLabError):
    """A real rank that raised, died, or did not start.

    Attributes
    ----------
    rank : int
        The first one.
    step : str or None
        The step of a program in which it raised.
    """

    def __init__(
        self, what: str, *, rank: int = 0, node: str | None = None, hint: str | None = None, step: str | None = None
    ) -> None:
        super().__init__(what, node=node, hint=hint)
        self.rank = rank
        self.step = step


class SavingError(SpmdLabError):
    """A program that cannot be written to a file, or a file that is no program for here."""


class VerificationError(SpmdLabError):
    """A program whose numbers differ from those of the single-device run."""


def expect(value: object, kinds: type | tuple[type, ...], argument: str, hint: str) -> None:
    """Refuse an argument of another type than a verb takes.

    Raises
    ------
    ArgumentError
        If ``value`` is of none of these kinds.

    Examples
    --------
    >>> expect("dp=2", int, "mesh", "Mesh(dp=2)")
    Traceback (most recent call last):
    spmd_lab.errors.ArgumentError: mesh cannot be a str
      argument: mesh
      try: Mesh(dp=2)
    """
    if not isinstance(value, kinds):
        raise ArgumentError(f"{argument} cannot be {_a_kind(value)}", argument=argument, hint=hint)


def _a_kind(value: object) -> str:
    kind = type(value).__name__
    article = "an" if kind[0] in "aeiouAEIOU" else "a"
    return "None" if value is None else f"{article} {kind}"


def nearest(name: object, names: Iterable[str], count: int = 3) -> str:
    """Say which of ``names`` are nearest to ``name``, as the text of a hint.

    Examples
    --------
    >>> nearest("wieght", ["weight", "bias"])
    "did you mean 'weight'?"
    >>> nearest("xyz", ["weight", "bias"])
    'there are: bias, weight'
    """
    known = sorted(set(names))
    close = get_close_matches(str(name), known, n=count, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(repr(match) for match in close) + "?"
    shown = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
    return f"there are: {shown}" if known else "there are none"
