"""What autograd and the tracer remember of where a node came from."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from torch._C._autograd import _get_sequence_nr, _top_saved_tensors_default_hooks
from torch.utils import checkpoint

if TYPE_CHECKING:
    from torch import fx

__all__ = [
    "CHECKPOINT",
    "autograd_number_of",
    "checkpoint_at_hand",
    "is_backward",
    "is_kept_by_policy",
    "next_autograd_number",
    "runs_in_autograd_node",
]

CHECKPOINT = inspect.unwrap(checkpoint.checkpoint).__code__
"""The code of ``torch.utils.checkpoint.checkpoint``."""


def next_autograd_number() -> int:
    """The number that autograd gives to the next node of its graph, on this thread."""
    return int(_get_sequence_nr())


def autograd_number_of(node: fx.Node) -> int | None:
    """The number of the autograd node in whose backward a traced node was made."""
    number = node.meta.get("seq_nr")
    return None if number is None else int(number)


def is_backward(node: fx.Node) -> bool:
    """Whether a traced node was made after the backward began."""
    return node.meta.get("partitioner_tag") == "is_backward"


def is_kept_by_policy(node: fx.Node) -> bool:
    """Whether a selective checkpoint says that a traced node is not computed again."""
    policy = checkpoint.CheckpointPolicy
    return node.meta.get("recompute") in (policy.MUST_SAVE, policy.PREFER_SAVE)


def runs_in_autograd_node(node: fx.Node) -> bool:
    """Whether a backward node was made inside an autograd node, and not between two (where gradients are added up)."""
    return bool(node.meta.get("autograd_backward"))


def checkpoint_at_hand() -> object | None:
    """What stands for the checkpoint that the program is in; None outside of all. Each call makes a new one."""
    hooks = _top_saved_tensors_default_hooks(True)
    if hooks is None or not hooks[0].__qualname__.startswith(checkpoint._checkpoint_hook.__name__):
        return None
    found: object = hooks[0]
    return found
