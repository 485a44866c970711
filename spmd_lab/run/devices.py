"""Which device a rank works on, and what carries its messages."""

from __future__ import annotations

from typing import NamedTuple

import torch

from spmd_lab.errors import ArgumentError

__all__ = ["RankDevice", "rank_device"]


class RankDevice(NamedTuple):
    """What a rank works with: the back end of its process group, and the number of its GPU, if it has one."""

    backend: str
    gpu: int | None


def rank_device(device: str, local_rank: int, local_size: int, gpus: int | None = None) -> RankDevice:
    """A GPU for each rank of a machine where there are enough, else one that ranks share.

    Parameters
    ----------
    device : str
        "cpu" or "cuda".
    local_rank, local_size : int
        Which rank of this machine it is, of how many; 0 where nobody knows how many.
    gpus : int, optional
        How many GPUs the machine has; by default they are counted.

    Raises
    ------
    ArgumentError
        If there is no GPU.

    Examples
    --------
    >>> rank_device("cuda", 1, 2, gpus=2), rank_device("cuda", 1, 2, gpus=1), rank_device("cpu", 1, 2)
    (RankDevice(backend='nccl', gpu=1), RankDevice(backend='gloo', gpu=0), RankDevice(backend='gloo', gpu=None))
    """
    if device == "cpu":
        return RankDevice("gloo", None)
    found = torch.cuda.device_count() if gpus is None else gpus
    if not found:
        raise ArgumentError("there is no GPU on this machine", argument=f"device={device!r}", hint='"cpu"')
    own = 0 < local_size <= found
    return RankDevice("nccl" if own else "gloo", local_rank % found)  # NCCL refuses two ranks on one GPU
