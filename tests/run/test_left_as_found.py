"""torch.distributed is left as it was found: a process group of the user's works before, after, and after an error."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]

PREPARED = """
import sys, torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
import spmd_lab as sl

class Branching(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

def join():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

def all_reduce():
    out = functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    assert out.tolist() == [1.0, 1.0, 1.0]
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,), mesh_dim_names=("mine",))
    whole = dist.tensor.distribute_tensor(torch.ones(4), mesh, [dist.tensor.Shard(0)])
    assert whole.sum().full_tensor().item() == 4.0
    dist.all_reduce(torch.ones(1))

def use_everything():
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.ReLU(), torch.nn.Linear(6, 4))
    rules = sl.colwise("0", axis="tp") | sl.rowwise("2", axis="tp")
    traced = sl.trace(model, torch.randn(8, 6), loss=lambda out: out.square().mean())
    program = sl.rebuild(sl.expand(traced, sl.Mesh(dp=4, tp=2), batch="dp", params=rules))
    program.verify().raise_if_wrong()
    assert len(program.expansion.collectives)

def fail():
    for attempt in (
        lambda: sl.trace(Branching(), torch.ones(3)),
        lambda: sl.spmd_expand(torch.nn.Linear(2, 2), torch.ones(4, 2), mesh=sl.Mesh(dp=2), batch="dq"),
        lambda: sl.spmd_expand(torch.nn.Linear(2, 2), torch.ones(4, 2), mesh=sl.Mesh(dp=2), params={"w": "o i"}),
        lambda: sl.distribute(torch.nn.Linear(2, 2), sl.Mesh(dp=7), example=torch.ones(14, 2)),
    ):
        try:
            attempt()
        except sl.SpmdLabError:
            continue
        raise AssertionError("nothing was refused")
"""


def run(*command: str) -> None:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr


def run_prepared(script: str) -> None:
    run("-c", PREPARED + textwrap.dedent(script))


def test_a_group_made_before() -> None:
    run_prepared("""
        join()
        world = dist.group.WORLD
        all_reduce(), use_everything(), all_reduce(), fail(), all_reduce(), use_everything(), all_reduce()
        assert dist.group.WORLD is world
        dist.destroy_process_group()
    """)


def test_a_group_made_after() -> None:
    run_prepared("""
        use_everything(), fail()
        assert not dist.is_initialized()
        join(), all_reduce(), use_everything(), all_reduce()
        dist.destroy_process_group()
        use_everything()
        join(), all_reduce()
        dist.destroy_process_group()
    """)


def test_nothing_is_patched() -> None:
    code = """
        import torch, torch.distributed as dist, torch.distributed.tensor, torch._dynamo  # patches one name itself
        import torch.distributed._functional_collectives as functional
        places = [torch, dist, dist.tensor, functional, torch.Tensor, torch.nn.Module, dist.tensor.DTensor]
        def snapshot():
            return {(at, name): each for at, place in enumerate(places) for name, each in vars(place).items()}
        before = snapshot()
        import spmd_lab as sl, spmd_lab.run, spmd_lab.prove
        model = torch.nn.Linear(4, 2)
        assert sl.spmd_expand(model, torch.ones(4, 4), mesh=sl.Mesh(dp=2), batch="dp").program.verify().ok
        after = snapshot()
        changed = [key for key, each in before.items() if callable(each) and after.get(key) is not each]
        assert not changed, changed
    """
    run("-c", textwrap.dedent(code))


def test_the_same_lines_train_under_a_launcher(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
            import torch, torch.distributed as dist, spmd_lab as sl
            dist.init_process_group("gloo")
            torch.manual_seed(0)
            model, x = torch.nn.Linear(6, 4), torch.randn(8, 6)
            distributed = sl.distribute(model, sl.Mesh(dp=2), example=x, batch="dp")
            distributed(x.chunk(2)[dist.get_rank()]).square().mean().backward()
            model(x).square().mean().backward()
            torch.testing.assert_close(distributed.weight.grad.full_tensor(), model.weight.grad)
            dist.destroy_process_group()
        """)
    )
    run("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", str(script))
