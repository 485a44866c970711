"""Layouts to choose from, in a notebook: each choice expands the same trace again, and shows what it changes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from spmd_lab.errors import SpmdLabError
from spmd_lab.expand import expand
from spmd_lab.notation import dtype_name
from spmd_lab.records import brief_record_of, html
from spmd_lab.show.change_html import change_html
from spmd_lab.show.markup import escaped, pre, tag
from spmd_lab.show.theme import BAD, FRAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spmd_lab.expand.expansion import Expansion
    from spmd_lab.layout import Layout
    from spmd_lab.trace.values import TracedInput

__all__ = ["LiveLayouts"]


class LiveLayouts:
    """An expansion whose layouts can be chosen anew.

    Parameters
    ----------
    expansion : Expansion
        Where to start. Its pending outputs are resolved in what is expanded from it.

    Attributes
    ----------
    params, inputs : dict of str to ipywidgets.Dropdown
        The layouts of the parameters, by pattern, and of the inputs, by name.
    before, expansion : Expansion
        The one before the last choice, and the present one.
    change, card, call : ipywidgets.HTML
        What the last choice changed, the expansion, and the call that makes it.
    """

    def __init__(self, expansion: Expansion) -> None:
        self.before = self.expansion = expansion
        groups = list(_groups(expansion))
        self.params = {name: _choice(name, layout) for name, role, layout in groups if role != "input"}
        self.inputs = {name: _choice(name, layout) for name, role, layout in groups if role == "input"}
        self._replicated = {name: _notation(layout, None, None) for name, _, layout in groups}
        self.change, self.card, self.call = (widgets.HTML() for _ in range(3))
        for control in (*self.params.values(), *self.inputs.values()):
            control.observe(self._choose, "value")
        choices = widgets.Box(
            [*self.params.values(), *self.inputs.values()], layout={"flex_flow": "row wrap", "max_width": "1100px"}
        )
        self.widget = widgets.VBox([choices, self.change, self.call, self.card])
        self._show()

    def _placements(self, controls: dict[str, widgets.Dropdown]) -> dict[str, str]:
        """Those that are not replicated; `expand` replicates the others."""
        return {name: control.value for name, control in controls.items() if control.value != self._replicated[name]}

    @property
    def source(self) -> str:
        """The call that makes the present expansion, as Python."""
        lines = ["sl.expand(", "    expansion.traced,", "    expansion.mesh,"]
        for argument, controls in (("params", self.params), ("inputs", self.inputs)):
            placements = self._placements(controls)
            if placements:
                lines += [f"    {argument}={{", *(f"        {k!r}: {v!r}," for k, v in placements.items()), "    },"]
        return "\n".join([*lines, ")"])

    def _choose(self, _: object) -> None:
        expansion = self.expansion
        try:
            after = expand(
                expansion.traced,
                expansion.mesh,
                params=self._placements(self.params),
                inputs=self._placements(self.inputs),
            )
        except SpmdLabError as error:
            self.change.value = tag("pre", escaped(str(error)), style=f"color:{BAD};white-space:pre-wrap")
            return
        self.before, self.expansion = expansion, after
        self._show()

    def _show(self) -> None:
        changed = change_html(brief_record_of(self.before), brief_record_of(self.expansion))
        self.change.value = tag("div", changed, style=FRAME) if self.before is not self.expansion else ""
        self.call.value = pre(escaped(self.source))
        self.card.value = html(self.expansion)

    def __repr__(self) -> str:
        return f"<LiveLayouts: {self.expansion.name}, {len(self.params) + len(self.inputs)} choices>"

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.widget._repr_mimebundle_(**options)


def _groups(expansion: Expansion) -> Iterator[tuple[str, str, Layout]]:
    """Inputs with their layouts; parameters of repeated blocks that lie alike are one pattern."""
    found: dict[str, list[tuple[TracedInput, Layout]]] = {}
    for entry, layout in zip(expansion.traced.inputs, expansion.input_layouts, strict=True):
        if entry.role == "tangent" or not layout.global_shape:
            continue
        name = entry.name if entry.role == "input" else re.sub(r"(?<![^.])\d+(?![^.])", "*", entry.name)
        found.setdefault(name, []).append((entry, layout))
    for name, members in found.items():
        if len({layout for _, layout in members}) == 1:
            yield name, members[0][0].role, members[0][1]
        else:
            yield from ((entry.name, entry.role, layout) for entry, layout in members)


def _choice(name: str, layout: Layout) -> widgets.Dropdown:
    """Whole, each dim over each axis, and the present layout."""
    mesh, dims = layout.mesh, range(len(layout.global_shape))
    every = [_notation(layout, None, None), *(_notation(layout, dim, axis) for dim in dims for axis in mesh.axes)]
    options = list(dict.fromkeys([*every, str(layout)]))
    return widgets.Dropdown(
        description=name,
        options=options,
        value=str(layout),
        style={"description_width": "initial"},
        layout={"width": "max-content"},
    )


def _notation(layout: Layout, dim: int | None, axis: str | None) -> str:
    sizes = [f"{size}/{axis}" if at == dim else str(size) for at, size in enumerate(layout.global_shape)]
    return f"{dtype_name(layout.dtype)}[{', '.join(sizes)}]"
