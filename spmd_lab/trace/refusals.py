"""What cannot be traced, said in the user's terms: the line, the reason, and what to try."""

from __future__ import annotations

from contextlib import contextmanager
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint

from spmd_lab.errors import SpmdLabError, TraceError
from spmd_lab.torch_internals.constructs import construct_behind, is_higher_order
from spmd_lab.torch_internals.fakes import data_dependence, operator_without_shapes
from spmd_lab.torch_internals.functional_ops import returns_what_it_writes
from spmd_lab.torch_internals.operators import loses_gradients
from spmd_lab.trace.origins import calling_line, first_call, function_called, line_of, went_through
from spmd_lab.trace.recorder import source_of_frame, user_frame
from spmd_lab.trace.ways_out import given_as_number, known_beforehand, told_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

    from torch import fx

__all__ = [
    "check_call",
    "check_gradient",
    "check_loss",
    "check_operators",
    "check_random",
    "random_state_kept",
    "refusal",
]

_BATCH_NORM = torch.nn.BatchNorm1d.forward.__code__
"""The code that all batch norms share."""
_SEED = 0x51D_AB5_0DD_5EED
"""A seed that no one sets: where it is gone after the program ran, the program has set another."""


def check_loss(loss: Any) -> None:
    """Refuse a loss that no backward can start from.

    Raises
    ------
    TraceError
        If it is no tensor of one element with a floating dtype.
    """
    if not isinstance(loss, torch.Tensor):
        raise TraceError(
            f"the loss is no tensor but {type(loss).__name__}",
            argument="loss",
            hint="a function that returns a scalar tensor, as F.cross_entropy does",
        )
    if loss.numel() != 1 or not (loss.is_floating_point() or loss.is_complex()):
        raise TraceError(
            f"the loss is no scalar: its shape is {list(loss.shape)}, its dtype {loss.dtype}",
            argument="loss",
            hint="reduce it, as .mean() or .sum() do",
        )


def check_call(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], frame: FrameType | None
) -> None:
    """Refuse a call whose meaning would change when the graph runs.

    Raises
    ------
    SeedSetError, TraceError
        As `check_random` does; or if an operator would lose gradients.
    """
    check_random(kwargs, frame)
    if loses_gradients(func) and torch.is_grad_enabled() and any(_has_gradient(each) for each in args):
        raise TraceError(
            f"{func} reads a tensor with a gradient, and does not say how it is differentiated",
            source=source_of_frame(frame, "") if frame is not None else None,
            hint="torch.library.register_autograd for it; or give it what is detached",
        )


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def check_operators(graph: fx.Graph, name: str) -> None:
    """Refuse operators that run programs of their own, that return their arguments, or whose tensors are not dense.

    Branches and loops of torch's run programs of their own; what is not dense has no dims that a mesh could divide.

    Raises
    ------
    TraceError
        If there is such a node; it names the line.
    """
    for node in graph.nodes:
        returning = returns_what_it_writes(node)
        if returning is not None:
            raise TraceError(
                f"{returning} writes into an argument and returns it",
                node=node.name,
                source=node.meta.get("source"),
                hint="let it return nothing (torch.library.custom_op, mutates_args), and read the argument after it",
            )
        if is_higher_order(node.target):
            raise TraceError(
                f"{name} calls {node.target}, which runs programs of its own",
                node=node.name,
                source=node.meta.get("source"),
                hint=_WRITTEN_OUT,
            )
        made = node.meta.get("val")
        if isinstance(made, torch.Tensor) and made.layout is not torch.strided:
            raise TraceError(
                f"{name} calls {node.target}, which makes a {made.layout} tensor: only dense ones are divided",
                node=node.name,
                source=node.meta.get("source"),
                hint="a dense tensor, and a mask where zeros shall be left out; nn.Embedding(..., sparse=False)",
            )


_WRITTEN_OUT = "a loop in Python, which is unrolled while it is traced; torch.where instead of a branch on data"


def check_gradient(tensor: torch.Tensor, known: torch.Tensor, frame: FrameType | None) -> None:
    """Refuse a tensor with a gradient that enters an autograd function without having been passed to the program.

    Such a function links the tensor that it is given to its backward before anyone can see it.

    Raises
    ------
    TraceError
        If the tensor is used inside the forward of a custom ``torch.autograd.Function``.
    """
    if not known.requires_grad or torch.is_grad_enabled() or frame is None:
        return
    forwards = _forwards_of(torch.autograd.Function)
    caller: FrameType | None = frame
    while caller is not None:
        if caller.f_code in forwards:
            outer = user_frame(caller.f_back)
            raise TraceError(
                "a custom autograd function takes a tensor that the program closes over, and its gradient would be "
                f"lost: its shape is {list(tensor.shape)}",
                source=source_of_frame(outer, "") if outer is not None else None,
                hint="pass the tensor as an argument of the traced function, or hold it as a parameter of a module",
            )
        caller = caller.f_back


def _forwards_of(kind: type[Any]) -> set[CodeType]:
    """The code of the forward of every class derived from one."""
    derived = kind.__subclasses__()
    own = {code for each in derived if isinstance(code := getattr(each.forward, "__code__", None), CodeType)}
    return own.union(*(_forwards_of(each) for each in derived))


def refusal(error: BaseException, name: str, again: Callable[[], Any]) -> SpmdLabError:
    """The error to raise instead of one that came up while ``name`` was traced.

    ``again`` runs the program once more, where that is needed to find the line.
    """
    if isinstance(error, SpmdLabError):
        return error
    if isinstance(error, SeedSetError):
        return _seed_refused(name, again)
    source = line_of(error) or calling_line()
    if went_through(error, torch.utils.checkpoint.CheckpointFunction.backward.__code__):
        return TraceError(
            f"{name} checkpoints reentrantly, which cannot be traced",
            source=first_call({torch.utils.checkpoint.CheckpointFunction.forward.__code__}, again) or source,
            hint="torch.utils.checkpoint.checkpoint(..., use_reentrant=False)",
        )
    operator = operator_without_shapes(error)
    if operator is not None:
        return TraceError(
            f"{operator} does not say which shapes it returns",
            source=source,
            hint=told_by(operator),
        )
    depends = data_dependence(error)
    if depends is not None and depends.kind == "value" and went_through(error, _BATCH_NORM):
        return TraceError(
            f"{name} has a batch norm with momentum=None, whose factor is the value of num_batches_tracked",
            source=source,
            hint="a number as its momentum",
        )
    if depends is not None and depends.kind == "value":
        return TraceError(
            f"{name} needs the value of a tensor to go on, so its program is not one graph",
            source=source,
            hint=given_as_number(function_called(error)),
        )
    if depends is not None:
        return TraceError(
            f"{name} calls {depends.operator}, the shape of whose output depends on data, so its program is not one "
            "graph",
            source=source,
            hint=known_beforehand(depends.operator),
        )
    construct = construct_behind(error)
    if construct is not None:
        return TraceError(
            f"{name} calls {construct.name}, which runs programs of its own",
            source=first_call({construct.code}, again) or source,
            hint=_WRITTEN_OUT,
        )
    first = next(iter(str(error).strip().splitlines()), "")
    return TraceError(
        f"{name} fails while it is traced: {type(error).__name__}: {first}",
        source=source,
        hint="a tensor has no data while it is traced: take out what prints it or makes it a NumPy array"
        if any(word in first for word in _WANT_DATA)
        else "run it eagerly on the same arguments first; the cause is chained to this error",
    )


_WANT_DATA = ("FunctionalTensor", "FakeTensor", ".numpy()", "data pointer")
"""What torch's errors mention where a program reads the data of a traced tensor."""


class SeedSetError(Exception):
    """The program has set a seed."""


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Put the random state back as it was; inside, `check_random` sees whether the program sets a seed."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(_SEED)
        yield


def check_random(kwargs: Mapping[str, Any], frame: FrameType | None) -> None:
    """Refuse a random draw that would not be the same when the graph runs.

    Raises
    ------
    SeedSetError
        If a seed has been set since `random_state_kept` began.
    TraceError
        If a call takes a generator of its own.
    """
    if torch.default_generator.initial_seed() != _SEED:
        raise SeedSetError
    if kwargs.get("generator") is not None:
        raise TraceError(
            "a random draw takes a generator of its own, whose state would be frozen into the graph",
            source=source_of_frame(frame, "") if frame is not None else None,
            hint="draw without generator=, and call torch.manual_seed before the program",
        )


def _seed_refused(name: str, again: Callable[[], Any]) -> TraceError:
    setters = (torch.random.manual_seed, torch.random.set_rng_state, torch.random.seed)
    return TraceError(
        f"{name} sets a seed while it runs: that would vanish from its graph",
        source=first_call({setter.__code__ for setter in setters}, again),
        hint="call torch.manual_seed before the program, not inside it",
    )
