"""The sharding rules that torch has for its own operators, asked without tensors, groups or launchers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._decompositions import DecompShardingStrategy
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._op_schema import OpSchema
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._pytree import tree_leaves, tree_map_only

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._ops import OpOverload
    from torch.distributed.tensor.placement_types import Placement

__all__ = ["NoStockRuleError", "StockAnswer", "TensorSlot", "ask_stock_rule"]

_MOST_NESTED, _MOST_CANDIDATES = 20_000, 600


class NoStockRuleError(Exception):
    """Torch has no rule for an operator, or its rule fails on these layouts."""


class _EndlessError(Exception):
    """Torch asks about ever more operators of a decomposition."""


@dataclass(frozen=True)
class TensorSlot:
    """Where a tensor stands among the arguments of an operator.

    Parameters
    ----------
    index : int
        Its position among the tensors of the call.
    shape, stride, dtype
        Of the whole tensor.
    placements : tuple of placements
        How it lies on the mesh.
    """

    index: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    placements: tuple[Placement, ...]


@dataclass(frozen=True)
class StockAnswer:
    """What torch's rule says of one call.

    Parameters
    ----------
    needs : tuple of placements
        The placements that each tensor argument must have, in order.
    outputs : tuple of (placements or None)
        Those of each output; None where an output is no tensor.
    op : OpOverload
        The operator to run on the shards (now and then another overload than was asked for).
    args, kwargs
        Its arguments on the shards of the asking rank; `TensorSlot` marks the tensors.
    """

    needs: tuple[tuple[Placement, ...], ...]
    outputs: tuple[tuple[Placement, ...] | None, ...]
    op: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@lru_cache(maxsize=1024)
def described_mesh(shape: tuple[int, ...], rank: int) -> DeviceMesh:
    """A ``DeviceMesh`` that only describes: no process group stands behind it."""
    size = 1
    for length in shape:
        size *= length
    names = tuple(f"axis{position}" for position in range(len(shape)))
    return DeviceMesh("cpu", torch.arange(size).reshape(shape), mesh_dim_names=names, _init_backend=False, _rank=rank)


def ask_stock_rule(
    op: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: torch.Tensor | Sequence[torch.Tensor | None] | None,
    mesh_shape: tuple[int, ...],
    rank: int = 0,
) -> StockAnswer:
    """Ask torch which layouts an operator needs and gives.

    Parameters
    ----------
    op : OpOverload
        The operator.
    args, kwargs
        Its arguments, with a `TensorSlot` for each tensor.
    result : tensor, or tuple or list of tensors
        What the operator returns on one device (fake tensors do).
    mesh_shape : tuple of int
        The sizes of the mesh axes.
    rank : int
        Whose local sizes the answer's arguments shall have.

    Raises
    ------
    NoStockRuleError
        If torch has no rule for the operator, or its rule fails; the text says why.
    """
    mesh = described_mesh(mesh_shape, rank)

    def to_spec(slot: TensorSlot) -> DTensorSpec:
        meta = TensorMeta(torch.Size(slot.shape), slot.stride, slot.dtype)
        return DTensorSpec(mesh, slot.placements, tensor_meta=meta)

    propagator = _Propagator(result)
    schema_info = propagator.op_to_schema_info.get(op)
    if schema_info is None:
        schema_info = propagator.op_to_schema_info_for_single_dim_strategy.get(op)
    schema = OpSchema(
        op,
        tree_map_only(TensorSlot, to_spec, args),
        tree_map_only(TensorSlot, to_spec, kwargs),
        schema_info=schema_info,
    )
    slots = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, TensorSlot)]
    try:
        answer = propagator.propagate_op_sharding_non_cached(schema)
    except Exception as error:
        said = error.__cause__ or error  # torch wraps what a decomposition raised
        raise NoStockRuleError(f"{type(said).__name__.strip('_')}: {said}") from error
    suggested = answer.redistribute_schema or schema
    specs = [leaf for leaf in tree_leaves((suggested.args_schema, suggested.kwargs_schema)) if _is_spec(leaf)]
    if len(specs) != len(slots):
        raise NoStockRuleError(f"its rule speaks of {len(specs)} tensors, the call has {len(slots)}")
    call_args = args
    if answer.use_val_from_redistribute_schema:
        remaining = iter(slots)
        call_args = tree_map_only(DTensorSpec, lambda _: next(remaining), suggested.args_schema)
    return StockAnswer(
        needs=tuple(tuple(spec.placements) for spec in specs),
        outputs=_output_placements(answer.output_spec),
        op=suggested.op,
        args=tuple(call_args),
        kwargs=kwargs,
    )


class _Propagator(ShardingPropagator):
    """Torch's propagator with torch's rules, told what an operator returns, instead of running it to find out."""

    _result: object

    def __init__(self, result: object) -> None:
        self.__dict__ = DTensor._op_dispatcher.sharding_propagator.__dict__ | {"_result": _tensor_meta(result)}
        self.decomp_strategy = _Decompositions(_NestedPropagator())

    def _propagate_tensor_meta_non_cached(self, op_schema: OpSchema) -> Any:
        return self._result


class _Decompositions(DecompShardingStrategy):
    """Tries every placement of every operand through the decomposition of an operator, unless these are too many."""

    @staticmethod
    def _get_candidate_placements(op_schema: OpSchema) -> Any:
        found = DecompShardingStrategy._get_candidate_placements(op_schema)
        if len(found) > _MOST_CANDIDATES:
            raise _EndlessError(f"its decomposition would be tried with {len(found):,} placements of its operands")
        return found


class _NestedPropagator(ShardingPropagator):
    """Asked about the operators of a decomposition, which may be composite themselves: it stops what does not end."""

    _asked: int

    def __init__(self) -> None:
        self.__dict__ = DTensor._op_dispatcher.sharding_propagator.__dict__ | {"_asked": 0}
        self._remembered = lru_cache(maxsize=None)(self.propagate_op_sharding_non_cached)
        self.__dict__["propagate_op_sharding"] = self._counted
        self.decomp_strategy = _Decompositions(self)

    def _counted(self, op_schema: OpSchema) -> Any:
        self._asked += 1
        if self._asked > _MOST_NESTED:
            raise _EndlessError(f"its propagation asks about more than {_MOST_NESTED:,} operators and does not end")
        return self._remembered(op_schema)


def _tensor_meta(result: object) -> object:
    if isinstance(result, torch.Tensor):
        return TensorMeta(result.shape, result.stride(), result.dtype)
    if isinstance(result, (tuple, list)):
        return type(result)(_tensor_meta(each) for each in result)
    return None


def _is_spec(leaf: object) -> bool:
    return isinstance(leaf, DTensorSpec)


def _output_placements(spec: object) -> tuple[tuple[Placement, ...] | None, ...]:
    specs: Sequence[object] = spec if isinstance(spec, (tuple, list)) else [spec]
    return tuple(tuple(each.placements) if isinstance(each, DTensorSpec) else None for each in specs)
