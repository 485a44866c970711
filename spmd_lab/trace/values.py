"""The first stage: the program of one device, forward and backward."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from torch import fx

from spmd_lab.drawn import Drawn
from spmd_lab.errors import ArgumentError, expect, nearest
from spmd_lab.trace.cells import shown_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch


__all__ = ["Phase", "Reference", "Source", "Structure", "TracedGraph", "TracedInput", "TracedOutput"]

Phase = Literal["forward", "backward"]
InputRole = Literal["parameter", "buffer", "input", "tangent"]
OutputRole = Literal["output", "loss", "gradient", "new value"]


@dataclass(frozen=True)
class Source:
    """A line of the user's code.

    Parameters
    ----------
    file, line : str, int
        Where it stands.
    code : str
        The line itself, stripped.
    function : str
        The function around it.
    module : str
        The dotted path of the ``nn.Module`` that ran it; empty for the outermost.

    Examples
    --------
    >>> print(Source("models/gpt.py", 17, "return x + self.down(h)", "forward", "blocks.0"))
    gpt.py:17: return x + self.down(h)
    """

    file: str
    line: int
    code: str
    function: str
    module: str

    @property
    def place(self) -> str:
        """``gpt.py:17``: the file's own name and the line; ``cell2320:17`` in a cell of a notebook."""
        return f"{shown_file(self.file)}:{self.line}"

    def __str__(self) -> str:
        return f"{self.place}: {self.code}"


@dataclass(frozen=True)
class TracedInput:
    """One flat tensor input of the traced program.

    Parameters
    ----------
    name : str
        The user's name: ``blocks.0.q.weight``, ``tokens``, ``batch.mask``, ``xs[0]``.
    role : str
        "parameter", "buffer", "input" or "tangent".
    global_shape : tuple of int
        The shape of the whole tensor.
    dtype : torch.dtype
        Its dtype.
    node : str
        The name of its placeholder in the graph.
    aliases : tuple of str
        Further names of the same tensor (tied parameters).
    closure : bool
        Whether a function closed over it, instead of taking it as an argument.
    owner : str
        The class of the module that owns a parameter or buffer ("Linear", "Embedding"); empty for other inputs.
    """

    name: str
    role: InputRole
    global_shape: tuple[int, ...]
    dtype: torch.dtype
    node: str
    aliases: tuple[str, ...] = ()
    closure: bool = False
    owner: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The name and its aliases."""
        return (self.name, *self.aliases)


@dataclass(frozen=True)
class TracedOutput:
    """One flat output of the traced program.

    Parameters
    ----------
    name : str
        ``out``, ``out[1]``, ``loss``, ``grad(blocks.0.q.weight)``, ``new(bn.running_mean)``.
    role : str
        "output", "loss", "gradient" or "new value".
    global_shape : tuple of int or None
        None where the output is None or no tensor.
    dtype : torch.dtype or None
        Likewise.
    of : str or None
        The input that a gradient or a new value belongs to; for a tangent's output, None.
    """

    name: str
    role: OutputRole
    global_shape: tuple[int, ...] | None
    dtype: torch.dtype | None
    of: str | None = None


@dataclass(frozen=True)
class Reference:
    """The user's program itself, to be run eagerly on one device.

    Parameters
    ----------
    run : callable
        Takes one tensor per traced input, tangents included, and returns one value per traced output, computed by
        eager PyTorch and its autograd. It changes neither its arguments nor the user's module.
    """

    run: Callable[[Sequence[torch.Tensor]], tuple[torch.Tensor | None, ...]] = field(repr=False)


@dataclass(frozen=True)
class Structure:
    """How the flat outputs stand in what the user's program returns.

    Parameters
    ----------
    assemble : callable
        Takes one value per output of role "output", in order, and returns them in the user's own structure (a tuple,
        a dict, a dataclass).
    """

    assemble: Callable[[Sequence[object]], object] = field(repr=False)


@dataclass(frozen=True, repr=False)
class TracedGraph(Drawn):
    """The program of one device, forward and backward, in ATen operators.

    Parameters
    ----------
    name : str
        What was traced: the class of the module or the name of the function.
    graph_module : torch.fx.GraphModule
        Flat: one placeholder per input, a tuple of outputs. Every op node carries ``meta["source"]`` (a `Source`),
        ``meta["phase"]`` and ``meta["val"]`` (fake tensors of global shape). Inside a ``torch.utils.checkpoint`` it has
        the number of that, ``meta["checkpoint"]``, and ``meta["kept"]`` where a policy says not to compute it again.
    inputs, outputs : tuple
        In the order of the graph's placeholders and of its output.
    values : tuple of torch.Tensor
        The example value of each input: real, fake, or on meta; tangents are fake.
    reference : Reference
        The user's program, to compare with.
    structure : Structure or None
        How to put the flat outputs together again.
    notes : tuple of str
        What of the user's program the graph does not show, in sentences: activation checkpointing promises less memory,
        by recomputing in the backward.
    """

    name: str
    graph_module: fx.GraphModule
    inputs: tuple[TracedInput, ...]
    outputs: tuple[TracedOutput, ...]
    values: tuple[torch.Tensor, ...]
    reference: Reference
    structure: Structure | None = None
    notes: tuple[str, ...] = ()

    def input(self, name: str) -> TracedInput:
        """The input of this name, or of which this is an alias.

        Raises
        ------
        ArgumentError
            If there is none.
        """
        expect(name, str, "name", "the name of an input, as text")
        for found in self.inputs:
            if name in found.names:
                return found
        names = [each for found in self.inputs for each in found.names]
        raise ArgumentError(f"{self.name} has no input {name!r}", argument=name, hint=nearest(name, names))

    def node(self, name: str) -> fx.Node:
        """The node of this name.

        Raises
        ------
        ArgumentError
            If there is none.
        """
        expect(name, str, "name", "the name of a node, as text")
        nodes: dict[str, fx.Node] = {node.name: node for node in self.graph_module.graph.nodes}
        if name not in nodes:
            raise ArgumentError(f"{self.name} has no node {name!r}", argument=name, hint=nearest(name, nodes))
        return nodes[name]

    def source(self, node: fx.Node | str) -> Source | None:
        """The user's line behind a node; None for placeholders and the output."""
        found = self._known(node)
        source: Source | None = found.meta.get("source")
        return source

    def phase(self, node: fx.Node | str) -> Phase:
        """Whether a node belongs to the forward or the backward."""
        found = self._known(node)
        phase: Phase = found.meta.get("phase", "forward")
        return phase

    def _known(self, node: fx.Node | str) -> fx.Node:
        expect(node, (str, fx.Node), "node", "a node of the graph, or its name")
        return self.node(node) if isinstance(node, str) else node

    @property
    def op_nodes(self) -> tuple[fx.Node, ...]:
        """The nodes that compute something: neither placeholders, constants, getitem nor the output."""
        return tuple(
            node
            for node in self.graph_module.graph.nodes
            if node.op == "call_function" and node.target is not operator.getitem
        )

    def to_text(self) -> str:
        """The whole code, where ``repr`` leaves out the middle of long code."""
        from spmd_lab.records import text

        return text(self, full=True)
