"""Layouts to choose from, in a notebook: each choice expands the same trace again, and shows what it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from spmd_lab.errors import SpmdLabError
from spmd_lab.expand import expand
from spmd_lab.jupyter.bundle import bundle
from spmd_lab.jupyter.choices import groups_of
from spmd_lab.records import brief_record_of, html
from spmd_lab.show.change_html import change_html
from spmd_lab.show.markup import escaped, muted, pre, tag
from spmd_lab.show.theme import BAD, FRAME, ink

if TYPE_CHECKING:
    from spmd_lab.expand.expansion import Expansion
    from spmd_lab.jupyter.choices import Group

__all__ = ["LiveLayouts"]


class LiveLayouts:
    """An expansion whose layouts can be chosen anew.

    Parameters
    ----------
    expansion : Expansion
        Where to start. What `expand` was asked for besides layouts and batch, it is asked for each time.

    Attributes
    ----------
    params, inputs : dict of str to ipywidgets.Dropdown
        The layouts of the parameters, by pattern, and of the inputs, by name.
    before, expansion : Expansion
        The one before the last choice, and the present one.
    source : str
        The call that makes the present one, as Python.
    change, card, call : ipywidgets.HTML
        What the last choice changed, the expansion, and the call that makes it.
    """

    def __init__(self, expansion: Expansion) -> None:
        self.before = self.expansion = expansion
        self._groups = {group.label: group for group in groups_of(expansion)}
        controls = {label: _choice(group) for label, group in self._groups.items()}
        self.params = {label: each for label, each in controls.items() if not self._groups[label].is_input}
        self.inputs = {label: each for label, each in controls.items() if self._groups[label].is_input}
        self.change, self.card, self.call = (widgets.HTML() for _ in range(3))
        for control in controls.values():
            control.observe(self._choose, "value")
        choices = widgets.Box(
            [*self.params.values(), *self.inputs.values()],
            layout={"flex_flow": "row wrap", "max_width": "1100px", "max_height": "260px", "overflow": "auto"},
        )
        self.widget = widgets.VBox([choices, self.change, self.call, self.card])
        self._show()

    def _placements(self, controls: dict[str, widgets.Dropdown]) -> dict[str, str]:
        """Those that are not replicated; `expand` replicates the others."""
        return {
            key: control.value
            for label, control in controls.items()
            if control.value != control.options[0]
            for key in self._groups[label].keys
        }

    def _source(self) -> str:
        lines = ["sl.expand(", "    expansion.traced,", "    expansion.mesh,"]
        for argument, controls in (("params", self.params), ("inputs", self.inputs)):
            placements = self._placements(controls)
            if placements:
                lines += [f"    {argument}={{", *(f"        {k!r}: {v!r}," for k, v in placements.items()), "    },"]
        lines += ["    **expansion.options,"] if self.expansion.options else []
        return "\n".join([*lines, ")"])

    def _choose(self, _: object) -> None:
        expansion = self.expansion
        self.change.value = muted("expanding ...")
        try:
            after = expand(
                expansion.traced,
                expansion.mesh,
                params=self._placements(self.params),
                inputs=self._placements(self.inputs),
                **expansion.options,
            )
        except SpmdLabError as error:
            told = tag("pre", escaped(str(error)), style=f"{ink(BAD)};white-space:pre-wrap")
            self.change.value = told + muted("below is still the expansion before this choice")
            return
        self.before, self.expansion = expansion, after
        self._show()

    def _show(self) -> None:
        changed = change_html(brief_record_of(self.before), brief_record_of(self.expansion))
        self.change.value = tag("div", changed, style=FRAME) if self.before is not self.expansion else ""
        self.source = self._source()
        self.call.value = pre(escaped(self.source))
        self.card.value = html(self.expansion)

    def __repr__(self) -> str:
        return f"<LiveLayouts: {self.expansion.name}, {len(self.params) + len(self.inputs)} choices>"

    def _repr_mimebundle_(self, **options: Any) -> Any:
        still = self.change.value + self.call.value + self.card.value
        return bundle(self.widget, repr(self), still, "expansion.live()", **options)


def _choice(group: Group) -> widgets.Dropdown:
    return widgets.Dropdown(
        description=group.label,
        options=group.options,
        value=str(group.layout),
        style={"description_width": "initial"},
        layout={"width": "max-content"},
    )
