"""What of this process is global, to see that nothing of it has changed."""

from __future__ import annotations

import gc
import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.fx import traceback as fx_traceback
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

if TYPE_CHECKING:
    from collections.abc import Iterator


def state_of_process() -> dict[str, Any]:
    hooks = nn.modules.module
    return {
        "hooks": [len(getattr(hooks, name)) for name in dir(hooks) if name.startswith("_global_") and "hooks" in name],
        "function modes": len(_get_current_function_mode_stack()),
        "dispatch modes": len(_get_current_dispatch_mode_stack()),
        "random": torch.get_rng_state().tolist(),
        "seed": torch.initial_seed(),
        "grad": torch.is_grad_enabled(),
        "collector": gc.isenabled(),
        "compiling": torch.compiler.is_compiling(),
        "profile": sys.getprofile(),
        "meta": dict(fx_traceback.get_current_meta()),
        "preserved": fx_traceback.has_preserved_node_meta(),
        "warnings": list(warnings.filters),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


@contextmanager
def process_as_found() -> Iterator[None]:
    """Assert that what runs inside leaves the process as it was."""
    before = state_of_process()
    yield
    assert state_of_process() == before
