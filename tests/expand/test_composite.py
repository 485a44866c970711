"""Programs with operators, backwards, transforms, dtypes and routing of their own: divided, and equal to one device."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils import checkpoint

import spmd_lab as sl
from spmd_lab.errors import TraceError
from tests.expand.composite import (
    PROGRAMS,
    WIDTH,
    Checkpointed,
    CheckpointedSequence,
    Mlp,
    centre,
    swish,
    swish_backward,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.models.specimen import Specimen

MESHES = {"dp": sl.Mesh(dp=4), "mixed": sl.Mesh(dp=2, tp=2)}
GATHERED = {
    "operator_with_a_backward": "spmd_lab_composite.swish",
    "operator_that_gives_a_list": "spmd_lab_composite.thirds",
    "operator_that_writes_into_its_arguments": "spmd_lab_composite.centre_functional",
    "operator_that_writes_into_a_buffer": "spmd_lab_composite.centre_functional",
}
"""The programs with operators that nobody has a rule for, and which."""


def expanded(traced: sl.TracedGraph, specimen: Specimen, mesh: sl.Mesh, **options: Any) -> sl.Expansion:
    rules = specimen.rules if "tp" in mesh.axes else {}
    return sl.expand(traced, mesh, params=rules, batch=specimen.batch_along("dp"), **options)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_equal_however_it_is_divided(name: str) -> None:
    specimen = PROGRAMS[name]()
    traced = specimen.trace()
    assert any(output.role == "gradient" for output in traced.outputs)
    for mesh in MESHES.values():
        expansion = expanded(traced, specimen, mesh)
        expansion.program.verify().raise_if_wrong()
        for step in expansion.steps:
            assert step.fallback is None or GATHERED.get(name, "?") in step.fallback, step.fallback


# --- operators of one's own, with rules ---------------------------------------------------------


def test_an_operator_with_rules_is_divided_forward_and_backward() -> None:
    specimen = PROGRAMS["operator_with_a_backward"]()
    traced = specimen.trace()
    x = torch.randn(5, 3)
    alike = ["b/* d -> b/* d", "b d/* -> b d/*"]
    of_two = ["b/* d, b/* d -> b/* d", "b d/*, b d/* -> b d/*", "b d{sum: *}, b d -> b d{sum: *}"]
    with (
        sl.register_rule(swish, alike, example=(x, 1.5)),
        sl.register_rule(swish_backward, of_two, example=(x, x.flip(0), 0.5)),
    ):
        for mesh in MESHES.values():
            expansion = expanded(traced, specimen, mesh, unsupported="error")
            expansion.program.verify().raise_if_wrong()
            assert "5/dp" in str(expansion.layout("swish"))
    assert any(step.fallback for step in expanded(traced, specimen, MESHES["dp"]).steps)


def test_an_operator_that_writes_is_taught_by_what_it_returns_and_what_it_writes() -> None:
    x, scale = torch.randn(5, 4), torch.randn(5, 4)

    def written(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        new = x.clone()
        centre(new, scale, [scale.clone()])
        return new

    with sl.register_rule(centre, "b/* d, b/* d, b/* d -> b/* e, b/* d, b/* d", example=(x, scale, [x + 1])) as rule:
        assert str(rule).startswith("rule for spmd_lab_composite.centre_functional.default, equal to the whole in ")
        expansion = sl.spmd_expand(written, x, scale, mesh=MESHES["dp"], batch="dp", unsupported="error")
        expansion.program.verify().raise_if_wrong()
        assert [each.kind for each in expansion.collectives] == []


def test_a_program_with_an_operator_that_writes_is_saved_and_read_where_it_was_never_traced(tmp_path: Path) -> None:
    specimen = PROGRAMS["operator_that_writes_into_a_buffer"]()
    expansion = expanded(specimen.trace(), specimen, MESHES["dp"])
    path = expansion.program.save(tmp_path / "counting.spmd")
    program = """
import sys, torch, spmd_lab as sl
@torch.library.custom_op("spmd_lab_composite::centre", mutates_args=("x", "sums"))
def centre(x: torch.Tensor, scale: torch.Tensor, sums: list[torch.Tensor]) -> torch.Tensor:
    return x
print([str(node.target) for node in sl.load(sys.argv[1]).for_rank(0).graph.nodes if "centre" in str(node.target)])
"""
    said = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "['spmd_lab_composite.centre_functional.default']"


# --- promises that a program of one graph does not keep ------------------------------------------


@pytest.mark.parametrize(
    ("name", "module"), [("checkpointed", Checkpointed), ("checkpointed_sequence", CheckpointedSequence)]
)
def test_it_is_said_where_checkpoints_are_recomputed(name: str, module: type[nn.Module]) -> None:
    traced = PROGRAMS[name]().trace()
    place = f"composite.py:{module.forward.__code__.co_firstlineno + 1}"
    (note,) = traced.notes
    assert note == f"the checkpoint at {place} is recomputed by sl.distribute, and kept where one graph runs as a whole"
    assert note in repr(traced)
    assert note in traced._repr_html_()


def test_each_place_is_named_once() -> None:
    class Twice(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(2):
                x = checkpoint.checkpoint(super().forward, x, use_reentrant=False)
            return x

    assert len(sl.trace(Twice(), torch.randn(5, WIDTH)).notes) == 1


def test_a_program_without_checkpoints_has_no_notes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traced = sl.trace(Mlp(), torch.randn(5, WIDTH))
    assert traced.notes == ()
    assert "recomputed" not in repr(traced)


# --- what is refused, by name -------------------------------------------------------------------

LIBRARY = torch.library.Library("spmd_lab_refused", "DEF")
LIBRARY.define("shapeless(Tensor x) -> Tensor")
LIBRARY.impl("shapeless", lambda x: x * 2, "CPU")
LIBRARY.define("blunt(Tensor x) -> Tensor")
LIBRARY.impl("blunt", lambda x: x * 2, "CompositeExplicitAutograd")
LIBRARY.define("made_of_others(Tensor x) -> Tensor")
LIBRARY.impl("made_of_others", lambda x: x.sin() * 2, "CompositeImplicitAutograd")
LIBRARY.define("returning_(Tensor(a!) x) -> Tensor(a!)", tags=[torch.Tag.inplace])
LIBRARY.impl("returning_", lambda x: x.mul_(2), "CompositeExplicitAutograd")


def shapeless(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.spmd_lab_refused.shapeless(x.detach())


def blunt(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.spmd_lab_refused.blunt(x)


def returning(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.spmd_lab_refused.returning_(x.clone())


def branch(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


def loop(x: torch.Tensor) -> torch.Tensor:
    return torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))[1]


WRITTEN_OUT = (
    "which runs programs of its own",
    "a loop in Python, which is unrolled while it is traced; torch.where instead of a branch on data",
)
REFUSED: list[tuple[Callable[..., Any], bool, tuple[str, str]]] = [
    (
        shapeless,
        False,
        (
            "spmd_lab_refused.shapeless.default does not say which shapes it returns",
            'torch.library.register_fake("spmd_lab_refused::shapeless")',
        ),
    ),
    (
        blunt,
        True,
        (
            "spmd_lab_refused.blunt reads a tensor with a gradient, and does not say how it is differentiated",
            "torch.library.register_autograd for it; or give it what is detached",
        ),
    ),
    (
        returning,
        False,
        (
            "spmd_lab_refused.returning_.default writes into an argument and returns it",
            "let it return nothing (torch.library.custom_op, mutates_args), and read the argument after it",
        ),
    ),
    (branch, True, ("branch calls torch.cond, " + WRITTEN_OUT[0], WRITTEN_OUT[1])),
    (branch, False, ("branch calls cond, " + WRITTEN_OUT[0], WRITTEN_OUT[1])),
    (loop, False, ("loop calls torch.while_loop, " + WRITTEN_OUT[0], WRITTEN_OUT[1])),
]


@pytest.mark.parametrize(("fn", "gradient", "text"), REFUSED)
def test_what_cannot_be_traced_is_named_with_its_line(
    fn: Callable[..., Any], gradient: bool, text: tuple[str, str]
) -> None:
    with pytest.raises(TraceError) as caught:
        sl.trace(fn, torch.randn(4, requires_grad=gradient))
    assert caught.value.what == text[0]
    assert caught.value.hint == text[1]
    assert f"line: test_composite.py:{fn.__code__.co_firstlineno + 1}: " in str(caught.value)


def test_an_operator_without_a_backward_may_read_what_is_detached_or_be_made_of_others() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * torch.ops.spmd_lab_refused.blunt(x.detach()) + torch.ops.spmd_lab_refused.made_of_others(x)

    traced = sl.trace(fn, torch.randn(5, 3, requires_grad=True), loss=torch.sum)
    sl.expand(traced, MESHES["dp"], batch="dp").program.verify().raise_if_wrong()


def test_a_reentrant_checkpoint_is_refused() -> None:
    class Reentrant(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint.checkpoint(super().forward, x, use_reentrant=True)

    with pytest.raises(TraceError, match="checkpoints reentrantly"):
        sl.trace(Reentrant(), torch.randn(5, WIDTH, requires_grad=True))


def test_settings_of_torch_are_as_they_were_after_a_trace() -> None:
    before = torch.backends.mkldnn.enabled
    sl.trace(nn.LSTM(3, 4), torch.randn(2, 3))
    assert torch.backends.mkldnn.enabled == before
