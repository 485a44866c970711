"""The second stage: expands every operator of a traced program over a mesh."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from spmd_lab.errors import ArgumentError, expect
from spmd_lab.expand.anew import taken_anew
from spmd_lab.expand.arguments import batch_inputs, input_layouts, layouts_at_rest, requested_outputs
from spmd_lab.expand.expansion import Expansion
from spmd_lab.expand.found import Steps
from spmd_lab.expand.in_use import InUse
from spmd_lab.expand.propagate import Random, Unsupported, propagate
from spmd_lab.expand.resolve import OutputPolicy, resolve_outputs, tangent_layout
from spmd_lab.expand.styles import AtRest, Style, colwise, fsdp, rowwise
from spmd_lab.expand.values import Collective, Move, Operand, Redistribution, Step
from spmd_lab.mesh import Mesh
from spmd_lab.trace.values import TracedGraph

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

__all__ = [
    "AtRest",
    "Collective",
    "Expansion",
    "Move",
    "Operand",
    "Redistribution",
    "Step",
    "Style",
    "colwise",
    "expand",
    "fsdp",
    "rowwise",
]


_CHOICES = {"pending": ("resolve", "keep"), "unsupported": ("replicate", "error"), "random": ("exact", "local")}
_USUAL = {"pending": "resolve", "unsupported": "replicate", "random": "exact", "regather": True}


def expand(
    traced: TracedGraph,
    mesh: Mesh,
    params: Mapping[str, object] | None = None,
    inputs: Mapping[str, object] | Sequence[object] | None = None,
    batch: str | Sequence[str] | None = None,
    outputs: Mapping[str, object] | None = None,
    pending: Literal["resolve", "keep"] = "resolve",
    unsupported: Unsupported = "replicate",
    random: Random = "exact",
    stored: Mapping[str, object] | None = None,
    regather: bool = True,
) -> Expansion:
    """Expand a traced program over a mesh: one step per operator, with the collectives that it needs.

    Placements are written in the notation, with dims named as you like (``"o/tp i"``), or as torch's objects, one per
    mesh axis (``[Shard(0), Replicate()]``).

    Parameters
    ----------
    traced : TracedGraph
        What `trace` returned.
    mesh : Mesh
        The mesh.
    params : mapping of str to placements, optional
        Patterns over the dotted names of parameters and buffers: ``*`` is one component, ``**`` any number. The first
        match wins; the rest is Replicate. `colwise` and `rowwise` make such mappings.
    inputs : mapping or sequence, optional
        Placements by name, or one per tensor input by position (None: Replicate). It wins over ``batch``.
    batch : str or (str, *names), optional
        The axis that divides dim 0 of every input whose dim 0 is as long as the first one's, or of those named.
    outputs : mapping of str to placements, optional
        Exact placements for outputs, by name. What is written into an input, ``new(x)``, lies as that input does
        where nothing else is said, and is whole where the input was pending.
    pending : str
        "resolve" carries out the reduction of outputs that come out pending, a parameter's gradient to the layout of
        the parameter, others to Replicate on the pending axes; "keep" leaves them.
    unsupported : str
        An operator without a sharding rule, or with one that is wrong for these layouts: "replicate" gathers what it
        reads, runs it whole, and says so in `Step.fallback`; "error" refuses, and names all of them at once.
    random : str
        "exact" gives the random numbers of a single device with the same seed, on any mesh: every rank draws whole
        tensors, at a cost that is in `Step.draw_bytes`. "local" lets each shard draw its own; copies of it agree.
    stored : mapping of str to placements, optional
        How parameters rest, where that is not how they are used: patterns as in ``params``, or `fsdp` for all of them.
        A step ``gather:<parameter>`` brings each to its layout in use when it is first read, cast before where it is
        read in a smaller dtype alone; its gradient and its new value are laid out as it rests.
    regather : bool
        Whether what is gathered is given up after the forward, and gathered once more, in ``regather:<parameter>``,
        when the backward first reads it (ZeRO-3, FSDP); else it is kept in between (ZeRO-2).

    Returns
    -------
    Expansion

    Raises
    ------
    SpmdLabError
        If an argument fits neither program nor mesh, or an operator cannot be expanded; the text names it.

    Examples
    --------
    >>> import torch, spmd_lab as sl
    >>> traced = sl.trace(torch.nn.Linear(4, 2), torch.zeros(8, 4))
    >>> expansion = sl.expand(traced, sl.Mesh(dp=4), batch="dp")
    >>> [str(each.have) for each in expansion.collectives]
    ['f32[2, 4]{sum: dp}', 'f32[2]{sum: dp}']
    """
    expect(traced, TracedGraph, "traced", "sl.trace(model, x) first, or sl.spmd_expand(model, x, mesh=...)")
    expect(mesh, Mesh, "mesh", "sl.Mesh(dp=2, tp=4)")
    for name, rules in {"params": params, "stored": stored, "outputs": outputs}.items():
        hint = f'a mapping of names to placements: {name}={{"...": "o/tp i"}}'
        expect({} if rules is None else rules, Mapping, name, hint)
    choices = {"pending": pending, "unsupported": unsupported, "random": random}
    for name, value in choices.items():
        if not isinstance(value, str) or value not in _CHOICES[name]:
            hint = " or ".join(f'"{choice}"' for choice in _CHOICES[name])
            raise ArgumentError(f"{name}={value!r} is unknown", argument=f"{name}={value!r}", hint=hint)
    expect(regather, bool, "regather", "True or False")
    asked = {**choices, "outputs": outputs, "stored": stored, "regather": regather}
    used = input_layouts(traced, mesh, params or {}, {} if inputs is None else inputs, batch)
    resting = layouts_at_rest(traced, mesh, stored or {}, used)
    given = {**used, **resting}
    traced = taken_anew(traced, resting) if regather else traced
    in_use = InUse(traced, {name: used[name] for name in resting}, regather)
    state = {found.name for found in traced.inputs if found.role in ("parameter", "buffer")}
    policy = OutputPolicy(
        pending,
        requested_outputs(traced, mesh, outputs or {}),
        {name: layout for name, layout in given.items() if name in state},
        given,
        {found.node: used[found.name] for found in traced.inputs if found.name in resting},
    )
    late = partial(tangent_layout, traced, policy)
    propagated = propagate(traced, mesh, given, late, unsupported, random, in_use)
    nodes = {node.name: node for node in traced.graph_module.graph.nodes if node.op == "placeholder"}
    for found in traced.inputs:
        if found.node not in propagated.layouts:
            propagated.layouts[found.node] = late(nodes[found.node], propagated.layouts)
    resolving, subgraphs, final = resolve_outputs(traced, policy, propagated)
    return Expansion(
        traced=traced,
        mesh=mesh,
        steps=Steps((*propagated.steps, *resolving)),
        layouts=propagated.layouts,
        input_layouts=tuple(propagated.layouts[found.node] for found in traced.inputs),
        output_layouts=final,
        in_use=in_use.layouts,
        batch_inputs=tuple(found.name for found in batch_inputs(traced, mesh, batch)),
        options={name: value for name, value in asked.items() if value not in (_USUAL.get(name), {})},
        subgraphs={**propagated.subgraphs, **subgraphs},
    )
