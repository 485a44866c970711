"""What every test stands on: one thread, seeds, no downloads, and torch.distributed left as it was found."""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest
import torch
import torch.distributed as dist
from nbval.plugin import IPyNbCell

if TYPE_CHECKING:
    from collections.abc import Iterator

NOTEBOOKS_RUN_WITH = "2.13"
"""The torch whose traces the notebooks show."""

hypothesis.settings.register_profile("spmd_lab", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("spmd_lab")
torch.set_num_threads(1)


def chromium() -> str | None:
    """The path of a Chromium, if there is one."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = {
        "gpu": None if torch.cuda.is_available() else "no CUDA device",
        "browser": None if chromium() else "no Chromium",
    }
    for item in items:
        for marker, reason in missing.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
    if not torch.__version__.startswith(NOTEBOOKS_RUN_WITH):
        for notebook in {item.parent for item in items if isinstance(item, IPyNbCell)}:
            notebook.skip_compare += ("text/html",)  # other releases name and count operators otherwise


@pytest.fixture
def hears_ctrl_c() -> Iterator[None]:
    """As in any shell: what runs in the background of one may have been started deaf."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _distributed_left_as_found() -> Iterator[None]:
    """No test, and nothing that it calls, may leave a process group behind or take one away."""
    before = dist.is_initialized()
    yield
    assert dist.is_initialized() == before, "torch.distributed was not left as it was found"
