"""What eager PyTorch makes of the same values, and how much of it is noise."""

from __future__ import annotations

import operator
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from spmd_lab.local_graph import whatever_the_strides
from spmd_lab.progress import counting
from spmd_lab.prove.tolerance import Shaker
from spmd_lab.torch_internals.checks import is_assertion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from spmd_lab.prove.pieces import Whole
    from spmd_lab.trace.values import TracedGraph

__all__ = ["cuda_devices", "eager_outputs", "memory_filled", "shaken_outputs"]

aten = torch.ops.aten


def eager_outputs(traced: TracedGraph, values: Sequence[torch.Tensor], seed: int) -> tuple[Any, ...]:
    """The outputs and gradients of the user's program, run on one device from a known state of random numbers."""
    torch.manual_seed(seed)
    with torch.enable_grad():
        outputs = traced.reference.run(list(values))
    return tuple(output.detach() if isinstance(output, torch.Tensor) else output for output in outputs)


def cuda_devices(values: Sequence[torch.Tensor]) -> list[int]:
    """The CUDA devices on which tensors lie."""
    return sorted({value.device.index for value in values if value.device.type == "cuda"})


@contextmanager
def memory_filled() -> Iterator[None]:
    """Let memory that nobody has written hold nan, or the largest integer: on every rank and on one device alike.

    This is what torch does where algorithms have to be deterministic.
    """
    strict, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*deterministic.*")
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
            yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=warns)
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


def shaken_outputs(
    traced: TracedGraph, inputs: Sequence[Whole], scales: Mapping[str, torch.Tensor], seed: int, sample: int
) -> tuple[Any, ...]:
    """The outputs of the traced program when every value on its way is changed by a few units in its last place.

    Parameters
    ----------
    traced : TracedGraph
        The program of one device.
    inputs : sequence of Whole
        Its inputs, with the magnitude of what they were reduced from.
    scales : mapping of str to torch.Tensor
        The values that ranks hold as pieces, with the magnitude of these: they are rounded in units of it.
    seed : int
        Of what the program draws.
    sample : int
        Each sample shakes otherwise.
    """
    shaker = Shaker(seed + sample)
    shaken = [shaker(each.value, each.scale) for each in inputs]
    torch.manual_seed(seed)
    with counting(f"shaking {traced.name}", len(traced.graph_module.graph.nodes)) as done:
        return _Shaking(traced.graph_module, shaker, scales, done).run(*shaken)  # type: ignore[no-any-return]


_CHOOSES = frozenset(
    {aten.amax, aten.amin, aten.cat, aten.clone, aten.cummax, aten.cummin, aten.gather, aten.index, aten.index_select}
    | {aten.kthvalue, aten.max, aten.median, aten.min, aten.mode, aten.sort, aten.stack, aten.topk}
)
"""Operators that hand on elements as they are: nothing is rounded, and the backward of some looks for equal ones."""


class _Shaking(fx.Interpreter):
    """Runs a graph, shaking what each operator makes; what is shaken already, as views are, stays as it is."""

    def __init__(
        self, module: fx.GraphModule, shaker: Shaker, scales: Mapping[str, torch.Tensor], done: Callable[[], None]
    ) -> None:
        super().__init__(module)
        self.shaker = shaker
        self.scales = scales
        self.done = done

    def run_node(self, n: fx.Node) -> Any:
        """Run one operator."""
        self.done()
        args = self.fetch_args_kwargs_from_env(n)[0]
        made = super().run_node(n)
        if n.op != "call_function":
            return made
        if n.target is operator.getitem or getattr(n.target, "overloadpacket", None) in _CHOOSES:
            return self.shaker(made, self.scales[n.name]) if n.name in self.scales else made
        return self._shaken(made, {_memory(each) for each in args}, self.scales.get(n.name))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call it, whatever its arguments' strides; nothing is asserted of what is shaken."""
        if is_assertion(target):
            return None
        return super().call_function(whatever_the_strides(target), args, kwargs)

    def _shaken(self, made: Any, read: set[int | None], scale: torch.Tensor | None) -> Any:
        if isinstance(made, (tuple, list)):
            return type(made)(self._shaken(each, read, None) for each in made)
        return self.shaker(made, scale) if isinstance(made, torch.Tensor) and _memory(made) not in read else made


def _memory(value: object) -> int | None:
    try:
        return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else None
    except RuntimeError:  # a tensor of zeros that torch never writes down
        return None
