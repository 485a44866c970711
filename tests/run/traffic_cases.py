"""What travels in a training step of a distributed module, counted where the process group is asked."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

import spmd_lab as sl
from spmd_lab.demo import GPT, MEGATRON

if TYPE_CHECKING:
    from spmd_lab import Program


PLACINGS: dict[str, tuple[dict[str, int], dict[str, object]]] = {
    "data parallel": ({"dp": 2}, {"batch": "dp"}),
    "tensor parallel": ({"tp": 2}, {"params": MEGATRON, "outputs": {"out": [Replicate()]}}),
    "divided in use": ({"dp": 2}, {"batch": "dp", "params": {"blocks.**.weight": "o/dp ..."}}),
    "divided at rest": ({"dp": 2}, {"batch": "dp", "stored": sl.fsdp("dp")}),
}

_CALLS = {
    "c10d::allreduce_": "all_reduce",
    "c10d::_allgather_base_": "all_gather",
    "c10d::reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "c10d::alltoall_base_": "all_to_all",
}
"""The calls of a process group, and what they are called here."""

_c10d = torch.ops._c10d_functional
_SENDING = {
    _c10d.all_reduce.default: "all_reduce",
    _c10d.all_reduce_.default: "all_reduce",
    _c10d.all_gather_into_tensor.default: "all_gather",
    _c10d.reduce_scatter_tensor.default: "reduce_scatter",
    torch.ops._dtensor.shard_dim_alltoall.default: "all_to_all",
}


class Elements(TorchDispatchMode):
    """Counts collectives by what they are and the elements of their full message."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = Counter[tuple[str, int]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in _SENDING:
            whole = made if _SENDING[func] == "all_gather" else args[0]
            self.counted[_SENDING[func], whole.numel()] += 1
        return made


def traffic(placing: str, passes: tuple[str, ...]) -> None:
    """A step sends what the module's program says, and nothing else but that ranks agree on what they do."""
    axes, how = PLACINGS[placing]
    torch.manual_seed(0)
    tokens = torch.arange(32).reshape(4, 8).mul(7) % 64
    model = sl.distribute(GPT(2, 32, 4, 64, 8), sl.Mesh(**axes), example=tokens, passes=passes, **how)  # type: ignore[arg-type]
    local = tokens.chunk(2)[dist.get_rank()] if "dp" in axes else tokens
    out = model(local)
    elements = Elements()
    with profile(activities=[ProfilerActivity.CPU]) as recorded, elements:
        out = model(local)
        F.cross_entropy(out.flatten(0, 1), local.flatten()).backward()
    expected = promised(model.program) + Counter({("all_gather", 2): 1})
    assert elements.counted == expected, (
        f"{elements.counted - expected} too many, {expected - elements.counted} missing"
    )
    calls = Counter(_CALLS[event.name] for event in recorded.events() or () if event.name in _CALLS)
    assert calls == Counter(kind for kind, _ in expected.elements()), calls
    assert len(model.program.collectives) > 0


def promised(program: Program) -> Counter[tuple[str, int]]:
    """Collectives and the elements of their full messages, as the program's table tells them."""
    return Counter((each.kind, each.payload_bytes // each.have.dtype.itemsize) for each in program.collectives)
