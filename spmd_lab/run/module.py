"""The module that `distribute` returns."""

from __future__ import annotations

import copy
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from spmd_lab.errors import ArgumentError, SpmdLabError
from spmd_lab.run.autograd import run_plan
from spmd_lab.run.calls import CallKind, dense, dims_by_stride, kind_of
from spmd_lab.run.closures import closed_over
from spmd_lab.run.initialise import initialise
from spmd_lab.run.plans import Plans
from spmd_lab.run.skeleton import Skeleton, skeleton_of
from spmd_lab.run.state import common_stream, distributed_state, following, placed, reduce_gradients
from spmd_lab.streams import Stream
from spmd_lab.torch_internals.modules import TiedModule, adopt_tree, get_tensor, put_tensor
from spmd_lab.trace.arguments import Arguments, bind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from spmd_lab.expand import Expansion
    from spmd_lab.layout import Layout
    from spmd_lab.rebuild import Program
    from spmd_lab.run.placing import Request
    from spmd_lab.run.plan import Plan
    from spmd_lab.trace.trees import Leaf

__all__ = ["DistributedModule"]


class DistributedModule(TiedModule):
    """A module whose ranks run their programs together; made by `distribute`.

    It has the parameters, buffers and submodules of the user's module under the same names; the tensors are DTensors.
    A call takes this rank's shards and returns this rank's shards. Calls of a new kind (other shapes, other flags,
    eval instead of train) are traced and expanded when they come, by all ranks together: each call begins with one
    small all_gather per mesh axis, in which the ranks tell one another what they are called with.

    Random numbers are those of a single device: the module goes on from the first rank's random state at the time when
    it was made, on every rank, and leaves the state of the process alone.
    """

    def __init__(self, request: Request, arguments: Arguments) -> None:
        super().__init__()
        skeleton = skeleton_of(request.module)
        self._request = replace(request, module=skeleton.module)
        self._plans = Plans(self._request, arguments)
        if not skeleton.stands_for(self._plans.first.expansion.traced.values):
            skeleton, self._request = Skeleton(request.module, {}), request
            self._plans = Plans(request, arguments)
        first = self._plans.first
        self._stream = common_stream(request.device_mesh)
        self._reduces = True
        tensors = distributed_state(first, request.device_mesh, skeleton.data)
        adopt_tree(self, self._request.module, tensors)
        self._wholes = {
            found.name: whole
            for (found, _), whole in zip(first.inputs, first.expansion.traced.values, strict=False)
            if found.role in ("parameter", "buffer")
        }
        for (found, _), whole in zip(first.inputs, first.expansion.traced.values, strict=False):
            if found.closure and found.name in self._wholes:
                put_tensor(self, found.name, tensors[id(whole)])
        self._plans.add_example(kind_of(arguments, self._mode(), is_whole=True), arguments)

    @property
    def device_mesh(self) -> DeviceMesh:
        """The ranks."""
        return self._request.device_mesh

    @property
    def expansion(self) -> Expansion:
        """The expansion of the example."""
        return self._plans.first.expansion

    @property
    def program(self) -> Program:
        """The program of the example, as it runs: after its passes."""
        return self._plans.first.program

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs of all kinds of call so far, the latest last; of more than 32 the oldest are forgotten."""
        return self._plans.programs

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients without sending them: they are pending sums, reduced once when the context ends.

        As under ``DistributedDataParallel``, calls inside it send nothing for gradients of parameters. Here the last
        micro-batch belongs inside too. After an exception nothing is sent: gradients stay pending.

        Examples
        --------
        >>> import torch, spmd_lab as sl
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> model = sl.distribute(torch.nn.Linear(4, 2), sl.Mesh(dp=1), example=torch.zeros(8, 4), batch="dp")
        >>> with model.no_sync():
        ...     for part in torch.ones(2, 8, 4):
        ...         model(part).sum().backward()
        >>> model.bias.grad.full_tensor()
        tensor([16., 16.])
        >>> torch.distributed.destroy_process_group()
        """
        before, self._reduces = self._reduces, False
        try:
            yield
        finally:
            self._reduces = before
        if before:
            reduce_gradients(self)

    def manual_seed(self, seed: int) -> None:
        """Start the module's random numbers anew, as ``torch.manual_seed`` does; on every rank with the same seed."""
        self._stream = Stream.seeded(seed)

    def initialise(self, init: Callable[[nn.Module], object] | None = None) -> None:
        """Give all parameters and buffers first values: those of a single device with the module's random state.

        One submodule after another, children before parents as in ``nn.Module.apply``, is made whole, initialised, and
        cut: a rank never holds more than one of them whole. Every rank calls it. After a start on ``meta``, make the
        optimizer when this is done.

        Parameters
        ----------
        init : callable, optional
            Takes a submodule, and sets the parameters and buffers that it holds itself. Default: what each has as
            ``reset_parameters``.

        Raises
        ------
        SpmdLabError
            If a submodule that holds tensors has no ``reset_parameters``, and there is no ``init``.

        Examples
        --------
        >>> import torch, spmd_lab as sl
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> with torch.device("meta"):
        ...     plain = torch.nn.Linear(4, 2)
        >>> model = sl.distribute(plain, sl.Mesh(dp=1), example=torch.zeros(8, 4), batch="dp")
        >>> model.manual_seed(0)
        >>> model.initialise()
        >>> _ = torch.manual_seed(0)
        >>> torch.equal(model.weight.full_tensor(), torch.nn.Linear(4, 2).weight)
        True
        >>> torch.distributed.destroy_process_group()
        """
        with self._stream:
            initialise(self, self._request.module, self.device_mesh, self._request.rank, init)

    def extra_repr(self) -> str:
        """What was distributed, and over which ranks."""
        kinds = len(self.programs)
        return f"{type(self._request.module).__name__} on {self._request.mesh!r}, {kinds} program{'s' * (kinds != 1)}"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run this rank's part of a call that all ranks make.

        Raises
        ------
        SpmdLabError
            On every rank, if the ranks' calls do not belong together.
        """
        arguments, call = self._read(args, kwargs)
        now = partial(following, self._request.module, self, self._wholes)
        plan = self._plans.plan(call, arguments, now, reduced=self._reduces)
        assert arguments is not None
        with self._stream if plan.draws else nullcontext():
            returned = iter(run_plan(plan, tuple(self._values(plan, arguments))))
        traced = plan.expansion.traced
        assert traced.structure is not None
        leaves = [
            next(returned) if layout is not None else None
            for output, layout in zip(traced.outputs, plan.expansion.output_layouts, strict=True)
            if output.role in ("loss", "output")
        ]
        if self._request.loss is None:
            return traced.structure.assemble(leaves)
        return leaves[0], traced.structure.assemble(leaves[1:])

    # --- copies ---

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedModule:
        """A module with tensors of its own that runs the same programs, as averages of weights need."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        for shared in (self._request, self._plans, self._wholes):
            memo[id(shared)] = shared
        copied.__dict__ = copy.deepcopy(self.__dict__, memo)
        return copied

    def __getstate__(self) -> Any:
        """Refuse to be written whole: programs belong to the processes that run them."""
        raise ArgumentError(
            "a distributed module cannot be pickled: it holds the programs and groups of this process",
            argument="module",
            hint="save module.state_dict(), and distribute the user's module again before loading",
        )

    # --- what a call is ---

    def _read(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Arguments | None, CallKind | SpmdLabError]:
        """The call and its kind, or why it cannot be made."""
        try:
            arguments = bind(self._request.module, args, kwargs)
            for leaf in arguments.tensors:
                self._refuse_foreign(leaf.name, leaf.value)
            self._refuse_empty()
            return arguments, kind_of(arguments, self._mode(), is_whole=self._request.global_inputs)
        except SpmdLabError as error:
            return None, error

    def _refuse_foreign(self, name: str, value: torch.Tensor) -> None:
        if isinstance(value, DTensor) and value.device_mesh != self.device_mesh:
            raise ArgumentError(
                f"{name!r} is a DTensor on another mesh",
                argument=name,
                layouts={name: value.device_mesh},
                hint=f"a DTensor on {self.device_mesh}, or its local tensor",
            )

    def _refuse_empty(self) -> None:
        empty = next((name for name in self._wholes if get_tensor(self, name).is_meta), None)
        if empty is not None:
            raise ArgumentError(
                f"{empty!r} has no data yet: it is on meta",
                argument="module",
                hint="initialise(), or to_empty(device=...) and a checkpoint, on every rank",
            )

    def _mode(self) -> tuple[object, ...]:
        """What a program depends on besides the arguments."""
        device = self.device_mesh.device_type
        autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
        closures = [(name, kind.shape, kind.dtype) for name, kind in closed_over(self._request.loss).items()]
        state = [get_tensor(self, name) for name in self._wholes]
        return (
            torch.is_grad_enabled(),
            autocast,
            tuple(module.training for module in self.modules()),
            tuple((tensor.dtype, tensor.requires_grad) for tensor in state),
            tuple(closures),
            self._reduces,
        )

    # --- what the program is given ---

    def _values(self, plan: Plan, arguments: Arguments) -> Iterator[torch.Tensor]:
        """This rank's shard of every input, in order, or the DTensor that holds it."""
        passed = iter(arguments.tensors)
        current = closed_over(self._request.loss)
        for position, (found, layout) in enumerate(plan.inputs):
            whole = plan.expansion.traced.values[position]
            if found.name in self._wholes:
                yield placed(get_tensor(self, found.name), layout.placements)
            elif not found.closure:
                yield dense(self._argument(next(passed), layout), dims_by_stride(whole))
            elif position in plan.closures:
                value = current[plan.closures[position]]
                yield dense(value[layout.slices(plan.rank)], dims_by_stride(whole))
            else:
                yield self._plans.constants.shard(whole, layout)

    def _argument(self, leaf: Leaf, layout: Layout) -> torch.Tensor:
        value: torch.Tensor = leaf.value
        if isinstance(value, DTensor):
            local: torch.Tensor = placed(value, layout.placements).to_local(grad_placements=layout.placements)
            return local
        if not self._request.global_inputs:
            return value
        if value.requires_grad and torch.is_grad_enabled() and not layout.is_replicated:
            raise ArgumentError(
                f"{leaf.name!r} is cut from a whole tensor: its gradient would lie in pieces on the ranks",
                argument=f"{leaf.name}, with global_inputs=True",
                layouts={leaf.name: layout},
                hint="pass a DTensor, or this rank's shard without global_inputs",
            )
        return value[layout.slices(self._request.rank)]
