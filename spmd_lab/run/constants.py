"""The shards of tensors that are no state: plain attributes of a module, which its programs read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmd_lab.run.agreement import broadcast
from spmd_lab.run.state import cut

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from spmd_lab.layout import Layout
    from spmd_lab.run.placing import Request
    from spmd_lab.run.plan import Plan

__all__ = ["Constants"]


class Constants:
    """This rank's shards: those of the first rank's tensors, and kept for as long as there is a plan that reads them.

    Parameters
    ----------
    request : Request
        The user's.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._kept: dict[tuple[int, Layout], tuple[torch.Tensor, torch.Tensor]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def shard(self, whole: torch.Tensor, layout: Layout) -> torch.Tensor:
        """This rank's part of a tensor; every rank asks for its own when the first one does."""
        key = (id(whole), layout)
        if key not in self._kept:
            local = cut(broadcast(whole, self._request.device_mesh), layout, self._request.rank)
            self._kept[key] = (whole, local)
        return self._kept[key][1]

    def keep_for(self, plans: Iterable[Plan]) -> None:
        """Forget the shards that none of these plans reads."""
        read = {id(value) for plan in plans for value in plan.expansion.traced.values}
        self._kept = {key: found for key, found in self._kept.items() if key[0] in read}
