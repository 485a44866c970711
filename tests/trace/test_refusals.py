"""What cannot be traced is said in the user's terms, with the line and what to try."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from spmd_lab import trace
from spmd_lab.errors import TraceError


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x
        return -x


def seeded(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    torch.manual_seed(0)
    return y + torch.rand(3)


def seeded_last(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    torch.manual_seed(0)
    return y


def seeded_in_a_fork(x: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return x + torch.rand(3)


def own_generator(x: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return x + torch.rand(3, generator=generator)


def reentrant(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda y: y.sin().exp(), x * 2, use_reentrant=True)


def wrong_shapes(x: torch.Tensor) -> torch.Tensor:
    return x @ x


def raising(x: torch.Tensor) -> torch.Tensor:
    raise KeyError("k")


VALUE = (
    "{name} needs the value of a tensor to go on, so its program is not one graph\n"
    "  line: test_refusals.py:{line}: {code}\n"
    "  try: torch.where for a branch, a Python number for .item(), or a custom operator (torch.library) "
    "around this part"
)
SHAPE = (
    "{name} calls aten.nonzero.default, the shape of whose output depends on data, so its program is not one graph\n"
    "  line: test_refusals.py:{line}: {code}\n"
    "  try: torch.where(mask, x, 0) instead of x[mask]; topk of a fixed number of elements where only some shall go on"
)
SEED = (
    "{name} sets a seed while it runs: that would vanish from its graph\n"
    "  line: test_refusals.py:{line}: {code}\n"
    "  try: call torch.manual_seed before the program, not inside it"
)
GENERATOR = (
    "a random draw takes a generator of its own, whose state would be frozen into the graph\n"
    "  line: test_refusals.py:{line}: {code}\n"
    "  try: draw without generator=, and call torch.manual_seed before the program"
)
REENTRANT = (
    "{name} checkpoints reentrantly, which cannot be traced\n"
    "  line: test_refusals.py:{line}: {code}\n"
    "  try: torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
)
SHAPES = (
    "{name} fails while it is traced: RuntimeError: a and b must have same reduction dim, but got [4, 3] X [4, 3].\n"
    "  line: test_refusals.py:{line}: {code}\n"
    "  try: run it eagerly on the same arguments first; the cause is chained to this error"
)
KEY = (
    "{name} fails while it is traced: KeyError: 'k'\n"
    "  line: test_refusals.py:{line}: {code}\n"
    "  try: run it eagerly on the same arguments first; the cause is chained to this error"
)


def masked(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


def places(x: torch.Tensor) -> torch.Tensor:
    return x.nonzero()


def as_number(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


@pytest.mark.parametrize(
    ("program", "code", "text"),
    [
        (Branching(), "if x.sum() > 0:", VALUE),
        (as_number, "return x * x.sum().item()", VALUE),
        (masked, "return x[x > 0]", SHAPE),
        (places, "return x.nonzero()", SHAPE),
        (seeded, "torch.manual_seed(0)", SEED),
        (seeded_last, "torch.manual_seed(0)", SEED),
        (seeded_in_a_fork, "torch.manual_seed(0)", SEED),
        (own_generator, "return x + torch.rand(3, generator=generator)", GENERATOR),
        (reentrant, "return checkpoint(lambda y: y.sin().exp(), x * 2, use_reentrant=True)", REENTRANT),
        (wrong_shapes, "return x @ x", SHAPES),
        (raising, 'raise KeyError("k")', KEY),
    ],
)
def test_the_text_names_the_line(program, code: str, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TraceError) as caught:
        trace(program, torch.randn(4, 3, requires_grad=True))
    inner = type(program).forward if isinstance(program, nn.Module) else program
    with open(__file__) as file:
        lines = file.read().splitlines()
    first = inner.__code__.co_firstlineno
    line = next(number for number in range(first, len(lines)) if lines[number - 1].strip() == code)
    name = type(program).__name__ if isinstance(program, nn.Module) else program.__name__
    assert str(caught.value) == text.format(name=name, line=line, code=code)
    assert capfd.readouterr().err == "", "torch says it as well"


def test_the_cause_is_kept() -> None:
    with pytest.raises(TraceError) as caught:
        trace(raising, torch.ones(3))
    assert isinstance(caught.value.__cause__, KeyError)


class Two(nn.Module):
    def forward(self, tokens: torch.Tensor, mask: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return tokens * mask * scale


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        (1, {}, "Two cannot be called so: missing a required argument: 'mask'\n  argument: Tensor"),
        (
            2,
            {"scal": 2},
            "Two cannot be called so: got an unexpected keyword argument 'scal'\n  argument: Tensor, Tensor, scal=int",
        ),
        (3, {}, "Two cannot be called so: too many positional arguments\n  argument: Tensor, Tensor, Tensor"),
    ],
)
def test_arguments_that_do_not_fit(args: int, kwargs: dict[str, int], text: str) -> None:
    with pytest.raises(TraceError) as caught:
        trace(Two(), *[torch.ones(3)] * args, kwargs=kwargs)
    assert str(caught.value) == f"{text}\n  try: its signature is Two(tokens, mask, *, scale=1.0)"


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (lambda out: out, "the loss is no scalar: its shape is [4, 3], its dtype torch.float32"),
        (lambda out: out.argmax(), "the loss is no scalar: its shape is [], its dtype torch.int64"),
        (lambda out: 3, "the loss is no tensor but int"),
        (lambda out: None, "the loss is no tensor but NoneType"),
        (3, "int cannot be called"),
    ],
)
def test_a_loss_that_is_none(loss, text: str) -> None:
    with pytest.raises(TraceError, match=re.escape(text)) as caught:
        trace(lambda x: x * 2, torch.randn(4, 3, requires_grad=True), loss=loss)
    assert caught.value.argument == "loss"
    assert caught.value.hint


def test_what_cannot_be_called() -> None:
    with pytest.raises(TraceError, match="int cannot be called") as caught:
        trace(3, torch.ones(3))  # type: ignore[arg-type]
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("a torch.nn.Module or a function, and then its arguments: trace(model, x)")


@pytest.mark.parametrize(
    ("program", "argument", "text"),
    [
        (lambda x: x, torch.eye(3).to_sparse(), "'x' is torch.sparse_coo, not a dense tensor"),
        (nn.LazyLinear(3), torch.ones(2, 3), "'weight' has no shape yet"),
        (nn.Sequential(torch.jit.script(nn.Linear(3, 2))), torch.ones(2, 3), "'0' is scripted"),
    ],
)
def test_tensors_and_modules_of_another_kind(program, argument: torch.Tensor, text: str) -> None:
    with pytest.raises(TraceError, match=re.escape(text)) as caught:
        trace(program, argument)
    assert caught.value.argument
    assert caught.value.hint


def test_a_distributed_module_is_refused(tmp_path) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_module

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        module = distribute_module(nn.Linear(3, 2), init_device_mesh("cpu", (1,)))
        with pytest.raises(TraceError, match="'weight' is a DTensor: the program of one device has plain tensors"):
            trace(module, torch.ones(4, 3))
    finally:
        dist.destroy_process_group()


def test_the_log_of_torch_is_as_it_was() -> None:
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.disabled
    with pytest.raises(TraceError):
        trace(wrong_shapes, torch.randn(4, 3))
    assert log.disabled == before


def prints(x: torch.Tensor) -> torch.Tensor:
    print("mean", x.mean())
    return x


def converts(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy())


@pytest.mark.parametrize("fn", [prints, converts])
def test_a_program_that_reads_data_to_show_it_is_told_so(fn: Any) -> None:
    with pytest.raises(TraceError) as caught:
        trace(fn, torch.ones(3))
    assert "try: a tensor has no data while it is traced: take out what prints it" in str(caught.value)
    assert "line: test_refusals.py:" in str(caught.value)


def test_a_failure_that_no_line_of_the_user_caused_names_the_call_of_trace() -> None:
    with pytest.raises(TraceError) as caught:
        trace(nn.Sequential(nn.Linear(3, 4), nn.Linear(3, 4)), torch.ones(2, 3))
    assert "test_refusals.py" in str(caught.value)
    assert "trace(nn.Sequential(" in str(caught.value)


def test_a_function_that_wants_a_number_says_which() -> None:
    with pytest.raises(TraceError, match="num_classes=, as a Python number"):
        trace(torch.nn.functional.one_hot, torch.tensor([0, 2]))
