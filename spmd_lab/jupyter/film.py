"""The film of an expansion in a notebook: sliders and filters around one frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from spmd_lab.errors import nearest
from spmd_lab.files import write_text
from spmd_lab.jupyter.bundle import bundle
from spmd_lab.records import film_of
from spmd_lab.show.film_html import frame_html, holdings_html, step_card, strip_html
from spmd_lab.show.film_page import film_page, module_paths
from spmd_lab.show.markup import muted
from spmd_lab.show.step_html import step_picture

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from spmd_lab.expand.expansion import Expansion

__all__ = ["Film"]

_ANY = "that communicates"


class Film:
    """Every step of an expansion, one at a time: trace, propagate, subgraph, splice.

    Parameters
    ----------
    expansion : Expansion
        What to film.
    values : bool
        Whether to run every rank once, and show the numbers that they hold.

    Attributes
    ----------
    step, rank : ipywidgets.IntSlider
        Which of the steps that pass the filters is shown, and whose shards.
    module, axis, kind : ipywidgets.Dropdown
        The filters.
    name : ipywidgets.Combobox
        The name of a step to go to.
    numbers : ipywidgets.Checkbox
        Whether every rank has been run, and numbers are shown.
    found : ipywidgets.HTML
        How many steps pass the filters, or that there is none of the name.
    frame : ipywidgets.HTML
        The step; each of its nodes unfolds into a card.
    """

    def __init__(self, expansion: Expansion, values: bool = False) -> None:
        self._expansion = expansion
        self.record = film_of(expansion, values)
        frames = self.record.frames
        self._visible = list(range(len(frames)))
        plain = {"readout": True, "continuous_update": True}
        self.step = widgets.IntSlider(
            description="step", min=1, max=max(len(frames), 1), layout={"width": "460px"}, **plain
        )
        self.play = widgets.Play(min=1, max=max(len(frames), 1), interval=700)
        widgets.jslink((self.play, "value"), (self.step, "value"))
        self.rank = widgets.IntSlider(description="rank", min=0, max=self.record.ranks - 1, **plain)
        self.module = _choice("module", ("every module", ""), [(path, path) for path in module_paths(self.record)])
        axes = dict.fromkeys(axis for frame in frames for axis in frame.axes)
        self.axis = _choice("axis", ("every axis", ""), [(axis, axis) for axis in axes])
        kinds = dict.fromkeys(kind for frame in frames for kind in frame.kinds)
        self.kind = _choice("kind", ("every step", ""), [(_ANY, "any"), *((kind, kind) for kind in kinds)])
        self.name = widgets.Combobox(
            description="go to", options=[frame.step.name for frame in frames], placeholder="name of a step"
        )
        self.numbers = widgets.Checkbox(description="numbers", value=values, indent=False, layout={"width": "auto"})
        self.strip, self.found, self.frame = widgets.HTML(), widgets.HTML(), widgets.HTML()
        for control in (self.step, self.rank):
            control.observe(self._show, "value")
        for control in (self.module, self.axis, self.kind):
            control.observe(self._filter, "value")
        self.name.observe(self._go, "value")
        self.numbers.observe(self._look, "value")
        rows = [
            widgets.HBox([self.play, self.step, self.rank, self.numbers], layout={"flex_flow": "row wrap"}),
            widgets.HBox([self.module, self.axis, self.kind, self.name], layout={"flex_flow": "row wrap"}),
        ]
        self.widget = widgets.VBox([self.strip, *rows, self.found, self.frame])
        self._show()

    @property
    def index(self) -> int | None:
        """The step that is shown; None where no step passes the filters."""
        return self._visible[self.step.value - 1] if self._visible else None

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the film to one file that plays without a kernel.

        Raises
        ------
        ArgumentError
            If there is no such folder.
        """
        return write_text(path, film_page(self.record))

    def _show(self, _: object = None) -> None:
        if self.index is None:
            self.strip.value, self.found.value, self.frame.value = "", "", "no step fits these filters"
            return
        rank, passing = self.rank.value, len(self._visible)
        is_whole = passing == len(self.record.frames)
        self.found.value = "" if is_whole else muted(f"{self.step.value:,} of {passing:,} that pass the filters")
        self.strip.value = strip_html(self.record, self.index)
        self.frame.value = frame_html(
            self.record,
            self.index,
            lambda frame: holdings_html(frame.holdings, rank),
            lambda index: step_card(self.record, index),
            step_picture,
        )

    def _filter(self, _: object = None) -> None:
        before = self.index or 0
        self._visible = [
            index
            for index, frame in enumerate(self.record.frames)
            if _is_inside(frame.module, self.module.value)
            and self.axis.value in ("", *frame.axes)
            and (self.kind.value in ("", *frame.kinds) or (self.kind.value == "any" and frame.kinds))
        ]
        last = max(len(self._visible), 1)
        place = next((place for place, index in enumerate(self._visible) if index >= before), last - 1)
        self.step.max = self.play.max = last
        self.step.value = min(place + 1, last)
        self._show()

    def _go(self, _: object = None) -> None:
        names = [frame.step.name for frame in self.record.frames]
        if self.name.value in names:
            self.module.value = self.axis.value = self.kind.value = ""
            self.step.value = names.index(self.name.value) + 1
            self._show()
        elif self.name.value:
            self.found.value = muted(f"no step is called {self.name.value}: {nearest(self.name.value, names)}")

    def _look(self, _: object = None) -> None:
        """Run every rank once, or forget what they hold."""
        self.record = film_of(self._expansion, self.numbers.value)
        self._show()

    def __repr__(self) -> str:
        return f"<Film: {self.record.overview.name}, {len(self.record.frames):,} steps>"

    def _repr_mimebundle_(self, **options: Any) -> Any:
        still = self.strip.value + self.frame.value
        return bundle(self.widget, repr(self), still, "expansion.film()", **options)


def _choice(description: str, everything: tuple[str, str], choices: list[tuple[str, str]]) -> widgets.Dropdown:
    return widgets.Dropdown(description=description, options=[everything, *choices], value="")


def _is_inside(module: str, path: str) -> bool:
    return not path or module == path or module.startswith(f"{path}.")
