"""One operator: every sample is traced once, and expanded and proved in every layout."""

from __future__ import annotations

import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import spmd_lab as sl
from tests.coverage.layouts import cases
from tests.coverage.operators import dtype_of, operators, samples, tensors_in
from tests.coverage.outcome import CaseOutcome
from tests.coverage.second_opinion import disagreement, wrong_shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spmd_lab.trace import TracedGraph
    from tests.coverage.layouts import Case
    from tests.coverage.operators import Sample

__all__ = ["dtype_name", "outcomes"]

UNINITIALISED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    }
)
"""Operators whose numbers mean nothing: their shards are judged by shape."""

_ROOT = Path(__file__).parents[2]
_LONGEST = 240


def outcomes(name: str, count: int, quick: bool = False) -> Iterator[CaseOutcome]:
    """Judge one operator on at most ``count`` samples."""
    warnings.simplefilter("ignore")
    for sample in samples(name, count):
        tensors = _tensors(sample)
        if tensors is None:
            continue
        try:
            traced = sl.trace(sample.call, *tensors)
        except Exception as error:
            yield _failed(sample.number, "", error)
            continue
        for case in cases(tensors, quick):
            yield _judged(name, sample, traced, case)


def _tensors(sample: Sample) -> list[torch.Tensor] | None:
    """Copies of its tensors, that require gradients where eager PyTorch has them; None where the call fails there."""
    for gradients in (True, False):
        copies = [
            _copy(each).requires_grad_(gradients and each.requires_grad and each.is_leaf) for each in sample.tensors
        ]
        try:
            made = tensors_in(sample.call(*copies))
            starts = [each for each in made if each.requires_grad]
            wanted = [each for each in copies if each.requires_grad]
            if starts and wanted:
                torch.autograd.grad(starts, wanted, [torch.ones_like(each) for each in starts], allow_unused=True)
        except Exception:  # samples that eager PyTorch refuses say nothing
            continue
        return [
            _copy(each).requires_grad_(copy.requires_grad) for each, copy in zip(sample.tensors, copies, strict=True)
        ]
    return None


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of its own memory, with the same strides."""
    detached = tensor.detach()
    copy = torch.empty_strided(detached.shape, detached.stride(), dtype=detached.dtype)
    return copy.copy_(detached)


def _judged(name: str, sample: Sample, traced: TracedGraph, case: Case) -> CaseOutcome:
    gradients = any(each.role == "gradient" for each in traced.outputs)
    fallbacks: tuple[str, ...] = ()
    try:
        expansion = sl.expand(traced, case.mesh, inputs=[list(each) for each in case.placements])
        fallbacks = tuple(sorted({f"{step.op}: {step.fallback}" for step in expansion.steps if step.fallback}))
        program = sl.rebuild(expansion)
        if operators()[name].name in UNINITIALISED:
            reason = wrong_shape(program)
        else:
            report = program.verify()
            reason = disagreement(program, sample.call) if report.ok else _divergence(report)
    except Exception as error:
        return _failed(sample.number, case.name, error, fallbacks)
    kind = "wrong" if reason else "equal"
    return CaseOutcome(sample.number, case.name, kind, _line(reason), fallbacks, gradients)


def _divergence(report: Any) -> str:
    first = report.first_divergence
    if first is None:
        wrong = [each for each in report.outputs if not each.ok]
        return f"{wrong[0].name} {wrong[0].layout} differs from eager, scaled error {wrong[0].max_scaled_error:.1e}"
    if first.step is None:
        return f"{first.value}: {first.reason}"
    operands = ", ".join(
        f"{each.have} -> {each.need}" if each.redistribution else str(each.have) for each in first.step.operands
    )
    made = ", ".join(str(each) for each in first.step.outputs)
    return f"{first.step.op}({operands}) = {made}: {first.reason}"


def _failed(sample: int, layout: str, error: Exception, fallbacks: tuple[str, ...] = ()) -> CaseOutcome:
    if isinstance(error, sl.SpmdLabError):
        return CaseOutcome(sample, layout, "refused", _line(f"{type(error).__name__}: {error.what}"), fallbacks)
    place = next(
        (
            f"{Path(frame.filename).relative_to(_ROOT)}:{frame.lineno}"
            for frame in reversed(traceback.extract_tb(error.__traceback__))
            if Path(frame.filename).is_relative_to(_ROOT / "spmd_lab")
        ),
        "",
    )
    what = str(error).strip().partition("\n")[0]
    return CaseOutcome(sample, layout, "crashed", _line(f"{type(error).__name__}: {what} @ {place}"), fallbacks)


def _line(text: str) -> str:
    one = " ".join(text.split())
    return one if len(one) <= _LONGEST else one[: _LONGEST - 1] + "…"


def dtype_name(name: str) -> str:
    """The dtype of an operator's samples."""
    return str(dtype_of(operators()[name])).removeprefix("torch.")
