"""What each functional collective does to the tensors of a group, in plain torch: no process group is involved."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

import torch

from spmd_lab.errors import VerificationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["WAIT", "Request", "combine", "is_collective", "perform", "request_of"]

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]

c10d = torch.ops._c10d_functional
WAIT = c10d.wait_tensor.default
"""The operator that follows a collective; here, where results are there at once, it is the identity."""


@dataclass(frozen=True)
class Request:
    """What one rank asks of its group.

    Parameters
    ----------
    kind : str
        "all_reduce", "all_gather", "reduce_scatter" or "all_to_all".
    axis : str
        The mesh axis that names the group.
    reduce_op : str or None
        "sum", "avg", "max", "min" or "product", where it reduces.
    group_size : int or None
        How many ranks it counts on, where it says so.
    gather_dim, shard_dim : int or None
        The dims of an exchange of shards.
    sent, received : tuple of int
        How many rows go to each rank, and come from each, in a general exchange.
    """

    kind: Kind
    axis: str
    reduce_op: str | None = None
    group_size: int | None = None
    gather_dim: int | None = None
    shard_dim: int | None = None
    sent: tuple[int, ...] = ()
    received: tuple[int, ...] = ()

    def agrees_with(self, other: Request) -> bool:
        """Whether two ranks of a group ask for the same; how many rows they exchange may differ."""
        return self._common == other._common

    @property
    def _common(self) -> tuple[object, ...]:
        return (self.kind, self.axis, self.reduce_op, self.group_size, self.gather_dim, self.shard_dim, len(self.sent))

    def __str__(self) -> str:
        reduced = f"{self.reduce_op}, " if self.reduce_op else ""
        return f"{self.kind}({reduced}{self.axis})"


# --- reading a node -----------------------------------------------------------------------------


def _all_reduce(input: Any, reduce_op: str, group_name: str) -> tuple[Any, Request]:  # noqa: A002
    return input, Request("all_reduce", group_name, reduce_op)


def _all_gather(input: Any, group_size: int, group_name: str) -> tuple[Any, Request]:  # noqa: A002
    return input, Request("all_gather", group_name, None, group_size)


def _reduce_scatter(input: Any, reduce_op: str, group_size: int, group_name: str) -> tuple[Any, Request]:  # noqa: A002
    return input, Request("reduce_scatter", group_name, reduce_op, group_size)


def _shard_dim_alltoall(input: Any, gather_dim: int, shard_dim: int, group_name: str) -> tuple[Any, Request]:  # noqa: A002
    return input, Request("all_to_all", group_name, gather_dim=gather_dim, shard_dim=shard_dim)


def _all_to_all_single(
    input: Any,  # noqa: A002
    output_split_sizes: Sequence[int],
    input_split_sizes: Sequence[int],
    group_name: str,
) -> tuple[Any, Request]:
    sent, received = tuple(input_split_sizes), tuple(output_split_sizes)
    return input, Request("all_to_all", group_name, sent=sent, received=received)


_READERS: dict[object, Callable[..., tuple[Any, Request]]] = {
    c10d.all_reduce.default: _all_reduce,
    c10d.all_gather_into_tensor.default: _all_gather,
    c10d.reduce_scatter_tensor.default: _reduce_scatter,
    c10d.all_to_all_single.default: _all_to_all_single,
    torch.ops._dtensor.shard_dim_alltoall.default: _shard_dim_alltoall,
}


def is_collective(target: object) -> bool:
    """Whether an operator is a collective that can be simulated."""
    return target in _READERS


def request_of(target: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Request]:
    """The tensor that a call of a collective hands in (or the node that stands for it), and what it asks for.

    Examples
    --------
    >>> print(request_of(c10d.all_reduce.default, ("x", "sum", "tp"), {})[1])
    all_reduce(sum, tp)
    """
    return _READERS[target](*args, **kwargs)


# --- carrying it out ----------------------------------------------------------------------------


def combine(reduce_op: str, pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """Reduce the pieces of a group, in the order of its ranks.

    Parameters
    ----------
    reduce_op : str
        "sum", "avg", "max", "min" or "product". Bools are reduced as NCCL does it: a sum is an *or*, a product an
        *and*.
    pieces : sequence of torch.Tensor
        One per rank.

    Raises
    ------
    VerificationError
        If the dtype has no such reduction.

    Examples
    --------
    >>> combine("sum", [torch.tensor([1, 2]), torch.tensor([10, 20])])
    tensor([11, 22])
    """
    first = pieces[0]
    if first.dtype == torch.bool:
        found = _BOOL_REDUCTIONS.get(reduce_op)
    elif reduce_op == "avg":
        exact = first.dtype.is_floating_point or first.dtype.is_complex
        return torch.div(combine("sum", pieces), len(pieces)) if exact else _refused(reduce_op, first)
    else:
        found = _REDUCTIONS.get(reduce_op)
    return reduce(found, pieces) if found is not None else _refused(reduce_op, first)


_REDUCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
    "product": torch.mul,
}
_BOOL_REDUCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.logical_or,
    "max": torch.logical_or,
    "min": torch.logical_and,
    "product": torch.logical_and,
}


def _refused(reduce_op: str, piece: torch.Tensor) -> torch.Tensor:
    raise VerificationError(
        f"there is no {reduce_op!r} over ranks of {piece.dtype}",
        hint=f"one of {', '.join(_REDUCTIONS)}; an avg only of floating point",
    )


def perform(request: Request, pieces: Sequence[torch.Tensor], requests: Sequence[Request]) -> list[torch.Tensor]:
    """What each rank of a group gets.

    Parameters
    ----------
    request : Request
        What the group asks for.
    pieces : sequence of torch.Tensor
        What each rank hands in, in the order of the group.
    requests : sequence of Request
        What each rank asks for; they agree.

    Raises
    ------
    VerificationError
        If the shapes do not allow it.

    Examples
    --------
    >>> ask = Request("all_gather", "tp", None, 2)
    >>> perform(ask, [torch.tensor([1]), torch.tensor([2])], [ask, ask])
    [tensor([1, 2]), tensor([1, 2])]
    """
    if not request.received:
        _check_equal(request, pieces)
    if request.kind == "all_reduce":
        return [combine(str(request.reduce_op), pieces)] * len(pieces)
    if request.kind == "all_gather":
        _check_divides(request, pieces[0], 0, 1)
        return [torch.cat(list(pieces))] * len(pieces)
    if request.kind == "reduce_scatter":
        _check_divides(request, pieces[0], 0, len(pieces))
        return list(combine(str(request.reduce_op), pieces).chunk(len(pieces)))
    if request.received:
        return _exchange_rows(pieces, requests)
    return _exchange_shards(request, pieces)


def _exchange_shards(request: Request, pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Rank r gets piece r of ``shard_dim`` of every rank, laid along ``gather_dim``."""
    gather_dim, shard_dim, size = int(request.gather_dim or 0), int(request.shard_dim or 0), len(pieces)
    _check_divides(request, pieces[0], gather_dim, 1)
    _check_divides(request, pieces[0], shard_dim, size)
    cut = [piece.tensor_split(size, shard_dim) for piece in pieces]
    return [torch.cat([parts[rank] for parts in cut], gather_dim) for rank in range(size)]


def _exchange_rows(pieces: Sequence[torch.Tensor], requests: Sequence[Request]) -> list[torch.Tensor]:
    """Rank r gets the rows that every rank has for it."""
    for sender, (piece, ask) in enumerate(zip(pieces, requests, strict=True)):
        taken = [other.received[sender] for other in requests]
        if list(ask.sent) != taken or piece.shape[0] != sum(ask.sent):
            raise VerificationError(
                f"rank {sender} of the group has {piece.shape[0]} rows and sends {list(ask.sent)}; "
                f"the others expect {taken}",
                hint="what a rank sends to another is what that one receives from it",
            )
    cut = [piece.split(list(ask.sent)) for piece, ask in zip(pieces, requests, strict=True)]
    return [torch.cat([parts[rank] for parts in cut]) for rank in range(len(pieces))]


def _check_equal(request: Request, pieces: Sequence[torch.Tensor]) -> None:
    kinds = {(tuple(piece.shape), piece.dtype) for piece in pieces}
    if len(kinds) > 1:
        shapes = ", ".join(f"{list(piece.shape)} {piece.dtype}" for piece in pieces)
        raise VerificationError(
            f"the ranks of one {request} hand in different tensors: {shapes}",
            hint="shards of different sizes are padded to one size first",
        )


def _check_divides(request: Request, piece: torch.Tensor, dim: int, pieces: int) -> None:
    if not -piece.ndim <= dim < piece.ndim:
        raise VerificationError(f"{request} works along dim {dim} of a tensor of shape {list(piece.shape)}")
    if piece.shape[dim] % pieces:
        raise VerificationError(
            f"{request} cuts dim {dim} of a tensor of shape {list(piece.shape)} into {pieces} equal pieces",
            hint="pad that dim first",
        )
