"""Ranks on the engines of a cluster that the user has: a local one of two engines."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

import spmd_lab as sl
from spmd_lab.errors import ArgumentError, RankError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ipyparallel = pytest.importorskip("ipyparallel", reason="ipyparallel is not installed")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder: Path = tmp_path_factory.mktemp("ipython")
    before = os.environ.get("IPYTHONDIR")
    os.environ["IPYTHONDIR"] = str(folder)
    cluster = ipyparallel.Cluster(n=2, controller_ip="127.0.0.1", engine_timeout=120, log_level=40)
    try:
        with cluster as found:
            found.wait_for_engines(2, timeout=120)
            yield found
    finally:
        if before is None:
            del os.environ["IPYTHONDIR"]
        else:
            os.environ["IPYTHONDIR"] = before


def test_engines_are_ranks(client: Any, capsys: pytest.CaptureFixture[str]) -> None:
    program = sl.spmd_expand(lambda x: (x * 2).sum(), torch.ones(4), mesh=sl.Mesh(dp=2), batch="dp").program
    for address in (None, "127.0.0.1"):
        with sl.Ranks(2, engine="ipyparallel", client=client, address=address) as ranks:
            assert ranks.patience_s == 8.0
            assert ranks.run(lambda: (print("here"), dist.get_rank())[1]) == [0, 1]
            assert capsys.readouterr().out == "[rank 0] here\n[rank 1] here\n"
            assert [each[0].item() for each in ranks.run(program, torch.arange(4.0))] == [12.0, 12.0]
    assert client[:].apply_sync(_has_group) == [False, False]


def _has_group() -> bool:
    import torch.distributed

    return torch.distributed.is_initialized()


def test_a_rank_that_raises_ends_the_call_and_the_engines_go_on(client: Any) -> None:
    def lonely() -> None:
        if dist.get_rank() == 1:
            raise ValueError("no such shard")
        dist.barrier()

    with sl.Ranks(2, engine="ipyparallel", client=client, patience_s=4.0) as ranks:
        assert ranks.run(dist.get_rank) == [0, 1]
        start = time.monotonic()
        with pytest.raises(RankError, match="rank 1 raised ValueError: no such shard"):
            ranks.run(lonely)
        assert time.monotonic() - start < 10
        assert ranks.run(dist.get_rank) == [0, 1]


def test_too_few_engines_are_refused(client: Any) -> None:
    with pytest.raises(ArgumentError, match="the cluster has 2 engines, not 3"):
        sl.Ranks(3, engine="ipyparallel", client=client).run(dist.get_rank)
