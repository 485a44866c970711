"""A gather on CPUs that leaves the memory of its process whole."""

from __future__ import annotations

from functools import cache

import torch

__all__ = ["mend_gathers"]

_c10d = torch.ops._c10d_functional


@cache
def mend_gathers() -> torch.library.Library:
    """Give ``_c10d_functional.all_gather_into_tensor`` another kernel for tensors on CPUs, until this process ends.

    The two threads of a gloo group write the name of what they finished into one string, without a lock (torch 2.13
    to 2.15). Of what programs ask gloo for, "ALLGATHER_COALESCED" alone has a name that does not fit inside the
    string: memory of its own is then freed twice, and a process that gathers often ends with "malloc(): unaligned
    tcache chunk" within a few thousand calls. torch's kernel asks for that collective; this one asks for the plain
    gather. What is passed, returned and waited for is the same, for every caller of the operator.

    Returns
    -------
    torch.library.Library
        What holds the kernel.

    Examples
    --------
    >>> mend_gathers() is mend_gathers()
    True
    """
    library = torch.library.Library("_c10d_functional", "IMPL", "CPU")
    library.impl("all_gather_into_tensor", _gathered)
    return library


def _gathered(each: torch.Tensor, group_size: int, group_name: str) -> torch.Tensor:
    """The tensors of all ranks of a group, one after another along the first dim: to be waited for."""
    sent = torch.view_as_real(each) if each.is_complex() else each  # gloo knows no complex numbers
    with torch.no_grad():
        out = sent.new_empty((group_size * sent.shape[0], *sent.shape[1:]))
        _c10d.all_gather_into_tensor_out.default(sent, group_size, group_name, out=out)
    return torch.view_as_complex(out) if each.is_complex() else out
