"""The expansion as a whole: every step, every layout, and ways to find one among them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import fx

from spmd_lab.errors import ArgumentError, expect, nearest
from spmd_lab.expand.found import StepList, Steps
from spmd_lab.expand.values import Collective, Step
from spmd_lab.shown import Shown
from spmd_lab.trace.uses import producer

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from spmd_lab.expand.subgraph import Subgraph
    from spmd_lab.explain import CollectiveTable
    from spmd_lab.jupyter.film import Film
    from spmd_lab.jupyter.live import LiveLayouts
    from spmd_lab.layout import Layout
    from spmd_lab.mesh import Mesh
    from spmd_lab.prove import VerifyReport
    from spmd_lab.rebuild import Program
    from spmd_lab.show.card import Card
    from spmd_lab.trace.values import Source, TracedGraph

__all__ = ["Expansion"]


@dataclass(frozen=True, repr=False, eq=False)
class Expansion(Shown):
    """What every operator of a program has, needs and becomes on a mesh.

    Parameters
    ----------
    traced : TracedGraph
        The program of one device.
    mesh : Mesh
        The mesh.
    steps : Steps
        A tuple: one per ATen operator, in order, and in front of those that first read it one per parameter that is
        gathered; then one per output that has to be resolved.
    layouts : mapping of str to Layout
        The layout of every tensor node of the traced graph, and of what steps gather, by their names.
    input_layouts, output_layouts : tuple
        In the order of the traced program's inputs and outputs; None where an output is no tensor.
    in_use : mapping of str to Layout
        The layouts in which parameters are used that rest otherwise, by name.
    batch_inputs : tuple of str
        The inputs that ``batch=`` divided.
    options : mapping of str to object
        What else `expand` was asked for, where it was not the usual: ``expand(traced, mesh, ..., **options)``.
    """

    traced: TracedGraph
    mesh: Mesh
    steps: Steps
    layouts: Mapping[str, Layout]
    input_layouts: tuple[Layout, ...]
    output_layouts: tuple[Layout | None, ...]
    in_use: Mapping[str, Layout]
    batch_inputs: tuple[str, ...]
    options: Mapping[str, Any]
    subgraphs: Mapping[str, Subgraph] = field(repr=False)

    @property
    def name(self) -> str:
        """The name of what was traced."""
        return self.traced.name

    @cached_property
    def collectives(self) -> CollectiveTable:
        """Every collective, in order, as a table to ask."""
        from spmd_lab.explain import CollectiveTable

        return CollectiveTable(tuple(each for step in self.steps for each in step.collectives))

    @cached_property
    def program(self) -> Program:
        """The program of the ranks, rebuilt on first use."""
        from spmd_lab.rebuild import rebuild

        return rebuild(self)

    def layout(self, node: fx.Node | str) -> Layout:
        """The layout of a value: a node of the traced graph, its name, or the name of an input or output.

        Raises
        ------
        ArgumentError
            If there is no such tensor.
        """
        expect(node, (str, fx.Node), "node", "a node of the traced graph, or the name of a value")
        name = node.name if isinstance(node, fx.Node) else node
        if name in self.layouts:
            return self.layouts[name]
        for found, layout in zip(self.traced.inputs, self.input_layouts, strict=True):
            if name in found.names:
                return layout
        outputs = {found.name: layout for found, layout in zip(self.traced.outputs, self.output_layouts, strict=True)}
        settled = outputs.get(name)
        if settled is not None:
            return settled
        hint = nearest(name, {*self.layouts, *outputs})
        raise ArgumentError(f"{self.name} has no tensor {name!r}", argument=repr(name), hint=hint)

    @cached_property
    def _by_name(self) -> dict[str, Step]:
        return {step.name: step for step in self.steps}

    def step(self, name: str) -> Step:
        """The step of this name.

        Raises
        ------
        ArgumentError
            If there is none.
        """
        expect(name, str, "name", "the name of a step, as text; expansion.steps[0] counts")
        if name not in self._by_name:
            raise ArgumentError(f"{self.name} has no step {name!r}", argument=name, hint=nearest(name, self._by_name))
        return self._by_name[name]

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __getitem__(self, key: str | fx.Node | Step | Collective) -> Step | StepList:
        """Find steps.

        Parameters
        ----------
        key : str, fx.Node, Step or Collective
            A step or node itself, a collective (its step), or text: the name of a node or step, the path of a
            module, or a line as ``"model.py:17"``. Where a node is called as a module is, both are meant; `step` finds
            the one.

        Returns
        -------
        Step or list of Step
            A list where several match.

        Raises
        ------
        ArgumentError
            If nothing matches.
        """
        hint = 'a name, a module, or a line as "model.py:17"; expansion.steps[0] counts'
        expect(key, (str, fx.Node, Step, Collective), f"expansion[{key!r}]", hint)
        if isinstance(key, Collective):
            return self.step(key.step)
        if isinstance(key, (fx.Node, Step)):
            return self.step(self._producer(key.name))
        found = self._find(key)
        return found[0] if len(found) == 1 else StepList(found)

    def _find(self, key: str) -> list[Step]:
        named = self._by_name.get(self._producer(key))
        with_lines = [step for step in self.steps if step.source is not None]
        inside = [step for step in with_lines if step is named or _is_inside(step.source.module, key)]  # type: ignore[union-attr]
        if named is not None:
            return inside or [named]
        found = inside or [step for step in with_lines if step.source is not None and _is_place(key, step.source)]
        if not found:
            raise self._nothing_called(key)
        return found

    def _nothing_called(self, key: str) -> ArgumentError:
        modules = {step.source.module for step in self.steps if step.source is not None} - {""}
        places = {step.source.place for step in self.steps if step.source is not None}
        if any(key in found.names for found in self.traced.inputs):
            hint = f"an input has no step of its own: expansion.layout({key!r})"
        elif any(key == found.name for found in self.traced.outputs):
            hint = f"an output has a step only where it is resolved: expansion.layout({key!r})"
        else:
            hint = nearest(key, places if re.search(r":\d+$", key) else {*self._by_name, *modules})
        return ArgumentError(f"nothing in {self.name} is called {key!r}", argument=f"expansion[{key!r}]", hint=hint)

    def _producer(self, name: str) -> str:
        """The step that a node belongs to: a getitem belongs to that of its producer."""
        return self._producers.get(name, name)

    @cached_property
    def _producers(self) -> dict[str, str]:
        return {node.name: producer(node).name for node in self.traced.graph_module.graph.nodes}

    def film(self, values: bool = False) -> Film:
        """Every step, one at a time, in a notebook: what each stage does with it, and what a rank holds.

        Parameters
        ----------
        values : bool
            Whether to run every rank once, and show the numbers too.

        Returns
        -------
        Film
            It shows itself, and `Film.to_html` writes it to a file that plays without a kernel.
        """
        from spmd_lab.jupyter.film import Film

        return Film(self, values)

    def live(self) -> LiveLayouts:
        """Choose layouts in a notebook: each choice expands the same trace again, and shows what it changes."""
        from spmd_lab.jupyter.live import LiveLayouts

        return LiveLayouts(self)

    def card(self, report: VerifyReport) -> Card:
        """The expansion as it shows itself, with the proof of its program beside its numbers.

        Parameters
        ----------
        report : VerifyReport
            What ``expansion.program.verify()`` returned.
        """
        from spmd_lab.records import card

        return card(self, report)

    def to_html(self, path: str | os.PathLike[str], report: VerifyReport | None = None) -> Path:
        """Write a self-contained page: every module with its steps that communicate, and the pictures of these.

        Parameters
        ----------
        path : path
            The file, in a folder that exists.
        report : VerifyReport, optional
            The proof, to stand beside the title.

        Raises
        ------
        ArgumentError
            If there is no such folder.
        """
        from spmd_lab.records import save_page

        return save_page(self, path, report)

    def to_svg(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture of the program that each rank runs as SVG: that of ``expansion.program.draw()``."""
        return self.program.to_svg(path)

    def to_dot(self, path: str | os.PathLike[str]) -> Path:
        """Write the program that each rank runs in the language of Graphviz: see `Drawn.to_networkx`."""
        return self.program.to_dot(path)

    def to_json(self, path: str | os.PathLike[str]) -> Path:
        """Write the expansion as JSON.

        An object with ``format`` ("spmd_lab expansion"), ``version`` (1), ``name``, ``mesh`` (sizes by axis, outermost
        first), ``inputs`` and ``outputs`` (each ``name``, ``role``, ``layout``), and ``steps``, in order. A step has
        ``name``, ``op``, ``phase``, ``source`` (``place``, ``code``, ``function``, ``module``; or null), ``operands``
        (``name``, ``have``, ``need``, ``moves``: ``kind``, ``axis``, ``before``, ``after``), ``outputs`` (layouts; null
        for what is no tensor), ``collectives`` (``kind``, ``axes``, ``group_size``, ``reduce_op``, ``payload_bytes``,
        ``sent_bytes_per_rank``, ``operand``, ``have``, ``need``), and ``fallback`` (text or null). Layouts are text in
        the notation, which `Layout.parse` reads. `spmd_lab.records.json_schema.SCHEMA` says the same as a JSON Schema.

        Raises
        ------
        ArgumentError
            If there is no such folder.
        """
        from spmd_lab.records import save_json

        return save_json(self, path)


def _is_place(key: str, source: Source) -> bool:
    """Whether ``model.py:17``, or a longer path, names this line."""
    whole = f"{source.file}:{source.line}".replace("\\", "/")
    return key == source.place or whole == key or whole.endswith("/" + key.replace("\\", "/"))


def _is_inside(module: str, path: str) -> bool:
    return module == path or module.startswith(path + ".")
