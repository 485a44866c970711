"""Gathers on ranks, by the operator that programs hold."""

from __future__ import annotations

import torch
import torch.distributed as dist

from spmd_lab.torch_internals.gloo import mend_gathers

_c10d = torch.ops._c10d_functional


def gathered(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """What a rank gathers of the others, and what there is to gather."""
    mend_gathers()
    size, group = dist.get_world_size(), dist.group.WORLD.group_name  # type: ignore[union-attr]
    count = torch.Size(shape).numel()
    held = [(torch.arange(count) + rank * count).to(dtype).reshape(shape) for rank in range(size)]
    pending = _c10d.all_gather_into_tensor.default(
        held[dist.get_rank()].requires_grad_(dtype.is_floating_point), size, group
    )
    return _c10d.wait_tensor.default(pending).detach(), torch.cat(held).detach()


def many_gathers(rounds: int, in_flight: int) -> bool:
    """Whether every one of many small gathers, several on their way at a time, brings what was sent."""
    mend_gathers()
    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD.group_name  # type: ignore[union-attr]
    right = True
    for count in range(rounds):
        lengths = [64 + (count + 37 * each) % 200 for each in range(in_flight)]
        pending = [
            _c10d.all_gather_into_tensor.default(torch.full((length,), float(rank)), size, group) for length in lengths
        ]
        for length, out in zip(lengths, pending, strict=True):
            sums = _c10d.wait_tensor.default(out).view(size, length).sum(1)
            right = right and sums.tolist() == [float(each * length) for each in range(size)]
    return right
