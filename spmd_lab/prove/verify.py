"""The proof: every rank's program is run in this process, and held against the single-device program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from spmd_lab.errors import ArgumentError, MeshError, expect
from spmd_lab.prove.claims import check_steps
from spmd_lab.prove.elsewhere import Elsewhere, replay
from spmd_lab.prove.follow import Follower
from spmd_lab.prove.inputs import global_values
from spmd_lab.prove.judge import judge
from spmd_lab.prove.layouts import check_graph
from spmd_lab.prove.one_rank import SimulationError
from spmd_lab.prove.pieces import Whole, assemble, is_inexact, replicas
from spmd_lab.prove.reference import cuda_devices, eager_outputs, memory_filled, shaken_outputs
from spmd_lab.prove.report import Divergence, OutputError, VerifyReport
from spmd_lab.prove.shares import local_values
from spmd_lab.prove.simulate import simulate
from spmd_lab.prove.tolerance import noise_of, tolerance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spmd_lab.expand import Expansion, Step
    from spmd_lab.layout import Layout
    from spmd_lab.mesh import Mesh
    from spmd_lab.prove.algebra import Finding
    from spmd_lab.rebuild import Program
    from spmd_lab.trace.values import TracedOutput

__all__ = ["verify"]

_MOST_RANKS = 64
_MOST_SAMPLES = 8
_SEEDS = 1 << 40


def verify(
    program: Program,
    inputs: Mapping[str, torch.Tensor] | Sequence[torch.Tensor | None] | None = None,
    seed: int = 0,
    ranks: Iterable[int] | Elsewhere | None = None,
) -> VerifyReport:
    """Run the program of every rank, with its collectives, in this process; compare it with one device.

    Three judges: each traced operator is run on the program's own values, put together by their layouts, and must make
    what the ranks hold; outputs and gradients must equal those of eager PyTorch; and the layouts are followed through
    the graphs that run, so that a dropped reduction of zeros is found too. No process group is needed or touched.

    Parameters
    ----------
    program : Program
        What `rebuild` returned.
    inputs : mapping or sequence of torch.Tensor, optional
        Whole tensors by the names of inputs, or by the position of the tensor inputs. By default the example values
        and the present values of parameters; drawn ones where those are fake.
    seed : int
        Of everything that is drawn: tangents, pieces of pending inputs, values instead of fake ones.
    ranks : iterable of int or Ranks, optional
        The ranks to report on; all of them run. With a `spmd_lab.Ranks`, real ranks run, with real collectives, and
        what they hold is judged in the same way.

    Returns
    -------
    VerifyReport
        Also where the program is wrong; `VerifyReport.raise_if_wrong` raises.

    Raises
    ------
    ArgumentError
        If the inputs are not those of the program, or the mesh has more than 64 ranks and ``ranks`` is not given.
    MeshError
        If the mesh has no such rank.

    Examples
    --------
    >>> import torch, spmd_lab as sl
    >>> mesh = sl.Mesh(dp=4)
    >>> expansion = sl.spmd_expand(torch.nn.Linear(4, 2), torch.ones(8, 4), mesh=mesh, batch="dp")
    >>> expansion.program.verify().ok
    True
    """
    expansion = program.expansion
    mesh = expansion.mesh
    expect(seed, int, "seed", "a whole number")
    seed = int(seed)
    if abs(seed) >= _SEEDS:
        raise ArgumentError(f"there is no seed {seed}", argument=f"seed={seed}", hint=f"below {_SEEDS}")
    chosen = _chosen_ranks(mesh, ranks)
    values = global_values(expansion.traced, inputs, seed)
    with torch.no_grad(), torch.random.fork_rng(cuda_devices(values)), memory_filled():
        held = local_values(values, expansion.input_layouts, seed)
        wholes = [
            assemble(layout, tensors, replicas(layout)[0], as_ranks_do=True) if layout.is_pending else Whole(value)
            for value, layout, tensors in zip(values, expansion.input_layouts, held, strict=True)
        ]
        graphs = [program.for_rank(rank) for rank in range(mesh.size)]
        torch.manual_seed(seed)
        follower = Follower(expansion, graphs[0].graph, wholes, chosen, seed)
        stopped: SimulationError | None = None
        results: list[tuple[Any, ...]] = []
        try:
            given = [[each[rank] for each in held] for rank in range(mesh.size)]
            if isinstance(ranks, Elsewhere):
                told, results = ranks.observe(program, given, seed)
                replay(told, follower)
            else:
                results = simulate(graphs, mesh, given, follower)
            follower.finish({each.graph for each in graphs}, results)
        except SimulationError as error:
            stopped = error
        divergences = _ordered(expansion, _found(program, follower, stopped, chosen))
        outputs = _judged_outputs(expansion, wholes, results, follower, chosen, seed, bool(divergences))
    return VerifyReport(
        ok=not divergences and all(output.ok for output in outputs),
        mesh=mesh,
        ranks=chosen,
        outputs=outputs,
        divergences=divergences,
        steps_checked=len(follower.tally.steps),
        values_checked=follower.tally.judged,
        largest=follower.tally.largest,
        seed=seed,
        draws_taken=follower.taken,
    )


def _chosen_ranks(mesh: Mesh, ranks: Iterable[int] | Elsewhere | None) -> tuple[int, ...]:
    if isinstance(ranks, Elsewhere):
        return tuple(range(mesh.size))
    if ranks is None:
        if mesh.size > _MOST_RANKS:
            raise ArgumentError(
                f"{mesh} has {mesh.size} ranks, and verify runs all of them in this process",
                argument="ranks",
                hint=f"ranks=range({mesh.size}) if that is what you want; a smaller mesh proves the same rules",
            )
        return tuple(range(mesh.size))
    expect(ranks, Iterable, "ranks", "the numbers of ranks: ranks=[0, 3]")
    given = list(ranks)
    for rank in given:
        if not isinstance(rank, int) or not 0 <= rank < mesh.size:
            raise MeshError(
                f"{mesh!r} has no rank {rank!r}",
                argument=f"ranks={rank!r}",
                hint=f"ranks run from 0 to {mesh.size - 1}",
            )
    if not given:
        raise ArgumentError("no rank to report on", argument="ranks=()", hint="leave ranks out for all of them")
    return tuple(sorted(set(given)))


# --- what is wrong ------------------------------------------------------------------------------


def _found(
    program: Program, follower: Follower, stopped: SimulationError | None, ranks: Sequence[int]
) -> list[tuple[str, Divergence]]:
    """Everything that is wrong, with the name of its step: numbers first."""
    expansion = program.expansion
    steps = {step.name: step for step in expansion.steps}
    found = [
        (
            wrong.step,
            Divergence(
                steps.get(wrong.step),
                wrong.value,
                wrong.fault.rank,
                wrong.fault.index,
                wrong.fault.expected,
                wrong.fault.got,
                wrong.fault.reason,
                wrong.layout,
            ),
        )
        for wrong in follower.tally.wrong
    ]
    if stopped is not None:
        step = str(stopped.step)
        found.append((step, Divergence(steps.get(step), step, stopped.rank, None, "a run", "none", stopped.what)))
    found += [(each.step, _as_divergence(steps, each, None)) for each in check_steps(expansion)]
    seen: set[int] = set()
    for rank in ranks:
        graph = program.for_rank(rank).graph
        if id(graph) not in seen:
            seen.add(id(graph))
            found += [(each.step, _as_divergence(steps, each, rank)) for each in check_graph(expansion, graph)]
    return found


def _as_divergence(steps: Mapping[str, Step], finding: Finding, rank: int | None) -> Divergence:
    step = steps.get(finding.step)
    return Divergence(step, finding.value, rank, None, finding.expected, finding.got, finding.reason)


def _ordered(expansion: Expansion, found: list[tuple[str, Divergence]]) -> tuple[Divergence, ...]:
    """In the order of the program; what no step is known for comes last."""
    order = {step.name: position for position, step in enumerate(expansion.steps)}
    return tuple(each for _, each in sorted(found, key=lambda pair: order.get(pair[0], len(order))))


# --- outputs ------------------------------------------------------------------------------------


def _judged_outputs(
    expansion: Expansion,
    inputs: Sequence[Whole],
    results: Sequence[tuple[Any, ...]],
    follower: Follower,
    ranks: Sequence[int],
    seed: int,
    known_wrong: bool,
) -> tuple[OutputError, ...]:
    """Outputs and gradients against eager PyTorch; where they are the only thing that differs, look at noise longer.

    Where shards have drawn numbers of their own, eager PyTorch cannot know them, and the followed trace stands for it.
    """
    traced = expansion.traced
    described = list(zip(traced.outputs, expansion.output_layouts, strict=True))
    if not results:
        return tuple(_unknown(output, layout) for output, layout in described)
    values = [each.value for each in inputs]
    expected = follower.returned() if follower.taken else eager_outputs(traced, values, seed)
    columns = list(zip(*results, strict=True))
    samples: list[tuple[Any, ...]] = []
    while True:
        samples.append(shaken_outputs(traced, inputs, follower.scales, seed, len(samples)))
        judged = tuple(
            _judged_output(output, layout, wanted, column, [sample[position] for sample in samples], ranks)
            for position, ((output, layout), wanted, column) in enumerate(
                zip(described, expected, columns, strict=True)
            )
        )
        if known_wrong or len(samples) >= _MOST_SAMPLES or all(output.ok for output in judged):
            return judged


def _judged_output(
    output: TracedOutput,
    layout: Layout | None,
    expected: Any,
    tensors: Sequence[Any],
    samples: Sequence[Any],
    ranks: Sequence[int],
) -> OutputError:
    if layout is None or not isinstance(expected, torch.Tensor):
        same = all(each == expected for each in tensors)
        error = 0.0 if same else float("inf")
        return OutputError(output.name, layout, error, error, 0.0, same)
    verdict = judge(expected, layout, tensors, ranks, lambda scale: noise_of(expected, samples, scale))
    allowed = tolerance(expected.dtype)
    errors = (verdict.max_abs_error, verdict.max_scaled_error)
    return OutputError(output.name, layout, *errors, allowed, verdict.fault is None)


def _unknown(output: TracedOutput, layout: Layout | None) -> OutputError:
    """An output that was not computed."""
    allowed = tolerance(layout.dtype) if layout is not None and is_inexact(layout.dtype) else 0.0
    return OutputError(output.name, layout, float("inf"), float("inf"), allowed, False)
