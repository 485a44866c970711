"""Passes of ours: each program stays equal to the single device, and costs what the pass says."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

import spmd_lab as sl
from spmd_lab.demo import GPT, MEGATRON
from spmd_lab.rewrite import PASSES, bucket
from tests.models.zoo import ZOO

aten, c10d = torch.ops.aten, torch.ops._c10d_functional
WAIT = c10d.wait_tensor.default
MESHES = {"dp": sl.Mesh(dp=2), "tp": sl.Mesh(tp=2), "both": sl.Mesh(dp=2, tp=2), "uneven": sl.Mesh(dp=3, tp=3)}
CHOICES = [("lean",), ("share",), ("overlap",), ("bucket",), tuple(PASSES), ("bucket", "share"), ("overlap", "share")]


@cache
def gpt(mesh: str) -> sl.Program:
    """Two blocks; on an uneven mesh the head is divided too."""
    torch.manual_seed(0)
    tokens = torch.arange(32).reshape(4, 8).mul(7) % 64
    traced = sl.trace(GPT(2, 32, 4, 64, 8), tokens)
    axes = MESHES[mesh].axes
    rules = MEGATRON | (sl.colwise("head", axis="tp") if mesh == "uneven" else {})
    batch = "dp" if "dp" in axes else None
    return sl.expand(traced, MESHES[mesh], batch=batch, params=rules if "tp" in axes else {}).program


def kinds(program: sl.Program) -> Counter[str]:
    return Counter(each.kind for each in program.collectives)


@pytest.mark.parametrize("mesh", MESHES)
def test_a_program_that_no_pass_has_changed_sends_what_its_steps_say(mesh: str) -> None:
    assert Counter(gpt(mesh).collectives) == Counter(gpt(mesh).expansion.collectives)


@pytest.mark.parametrize("passes", CHOICES, ids=" ".join)
@pytest.mark.parametrize("mesh", MESHES)
def test_every_pass_leaves_the_numbers_as_they_were(mesh: str, passes: tuple[str, ...]) -> None:
    program = gpt(mesh).rewrite(*passes)
    program.verify().raise_if_wrong()
    sent = [each.total("sent_bytes_per_rank") for each in (program.collectives, gpt(mesh).collectives)]
    assert sent[0] <= sent[1] + 3 * 4 * len(program.collectives)  # bytes are rounded down once for each collective


@pytest.mark.parametrize("passes", [("lean",), ("share",), tuple(PASSES)], ids=" ".join)
def test_redistributions_in_several_moves_can_be_shared_in_part(passes: tuple[str, ...]) -> None:
    """A mask of all heads is cut over two axes, for each layer; gradients are summed over one, then gathered."""
    specimen = ZOO["llama"]()
    expansion = sl.expand(specimen.trace(), sl.Mesh(dp=2, tp=2), batch="dp", params=specimen.rules)
    expansion.program.rewrite(*passes).verify().raise_if_wrong()


@pytest.mark.parametrize("mesh", MESHES)
def test_ranks_meet_in_the_same_order(mesh: str) -> None:
    program = gpt(mesh).rewrite(*PASSES)
    ranks = range(program.expansion.mesh.size)
    assert len({tuple(_meetings(program.for_rank(rank).graph)) for rank in ranks}) == 1


def _meetings(graph: fx.Graph) -> list[tuple[str, str]]:
    return [(str(node.target), str(node.args[-1])) for node in graph.nodes if any(u.target is WAIT for u in node.users)]


def test_a_block_of_a_tensor_parallel_model_reduces_four_times() -> None:
    """As one writes it by hand: twice on the way in, twice on the way back."""
    program = gpt("tp")
    assert kinds(program) == {"all_reduce": 12}
    assert kinds(program.rewrite("share")) == {"all_reduce": 8}


def test_gradients_travel_together() -> None:
    program = gpt("dp").rewrite("bucket")
    assert len(gpt("dp").collectives) == 37
    (joined,) = program.collectives
    assert joined.payload_bytes == gpt("dp").collectives.total("payload_bytes")
    assert joined.have.is_pending
    assert not joined.need.is_pending


def test_a_full_bucket_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "_FULL", 20_000)
    monkeypatch.setattr(bucket, "_SMALL", 10_000)
    program = gpt("dp").rewrite("bucket")
    sizes = [each.payload_bytes for each in program.collectives]
    joined = [each.payload_bytes for each in program.collectives if len(each.have.global_shape) == 1]
    assert len(joined) > 2
    assert max(joined) <= 20_000
    assert [size for size in sizes if size > 20_000] == []
    assert sum(sizes) == gpt("dp").collectives.total("payload_bytes")
    program.verify().raise_if_wrong()


def test_nothing_travels_with_what_is_read_before_it_is_there() -> None:
    """The second sum is made of the first: they cannot leave together; the third can go with either."""

    def chain(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x @ w).relu() @ v, x @ w[:, :2]

    inputs = {"x": "b d/tp", "w": "d/tp h", "v": "h/tp o"}
    args = torch.randn(3, 4), torch.randn(4, 4), torch.randn(4, 2)
    program = sl.spmd_expand(chain, *args, mesh=sl.Mesh(tp=2), inputs=inputs).program
    joined = program.rewrite("overlap", "bucket")
    joined.verify().raise_if_wrong()
    assert len(joined.collectives) < len(program.collectives)
    assert len(joined.collectives) > 1


def test_what_is_sent_is_waited_for_where_it_is_read() -> None:
    graph = gpt("dp").rewrite("overlap").graph_module.graph
    nodes = list(graph.nodes)
    last = max(index for index, node in enumerate(nodes) if node.op == "call_function" and node.target is not WAIT)
    waits = [index for index, node in enumerate(nodes) if node.target is WAIT]
    assert min(waits) > last  # gradients are read when all is done
    sent = [index for index, node in enumerate(nodes) if node.target is c10d.all_reduce.default]
    products = [index for index, node in enumerate(nodes) if node.target is aten.mm.default]
    assert sum(index < products[-1] for index in sent) > len(sent) / 2


def test_views_that_undo_one_another_are_gone() -> None:
    program = gpt("dp")
    views = [aten.t.default, aten.transpose.int, aten.reshape.default, aten.detach.default]
    count = [
        sum(node.target in views for node in each.graph_module.graph.nodes)
        for each in (program, program.rewrite("lean"))
    ]
    assert count[1] < 0.7 * count[0]


def test_a_rank_sends_nothing_to_itself() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    program = sl.spmd_expand(model, torch.ones(8, 4), mesh=sl.Mesh(dp=1, tp=2), batch="dp").program
    assert len(program.collectives) > 0 == len(program.rewrite("lean").collectives)
    program.rewrite("lean").verify().raise_if_wrong()


def test_no_two_draws_become_one() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x) + F.dropout(x)

    expanded = sl.spmd_expand(program, torch.ones(8, 4), mesh=sl.Mesh(dp=2), batch="dp").program
    shared = expanded.rewrite("share")
    draws = [aten.native_dropout.default, aten.bernoulli.p, aten.rand_like.default, aten.empty_like.default]
    counts = [sum(node.target in draws for node in each.graph_module.graph.nodes) for each in (expanded, shared)]
    assert counts[0] == counts[1]
    shared.verify().raise_if_wrong()


def test_a_value_that_has_two_names_may_be_read_next_to_one_that_is_shared() -> None:
    """The sizes of bags are two outputs in one node; the backward reads both, and indices that are now the first's."""

    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.EmbeddingBag(12, 6, mode="mean", padding_idx=0)

        def forward(self, rows: torch.Tensor, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.rows(rows), self.rows(rows.flatten(), starts)

    torch.manual_seed(0)
    rows, starts = torch.randint(12, (10, 3)), torch.arange(0, 30, 3)
    expansion = sl.spmd_expand(Bags(), rows, starts, mesh=sl.Mesh(dp=2), batch="dp")
    expansion.program.rewrite("share").verify().raise_if_wrong()


def test_a_gathered_parameter_is_not_kept_for_the_backward() -> None:
    """It would undo what dividing it at rest saves; the sum of what ranks made is kept, as its pieces would be."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    traced = sl.trace(model, torch.randn(8, 8))
    program = sl.expand(traced, sl.Mesh(dp=2), batch="dp", params={"**.weight": "o/dp i"}).program
    shared = program.rewrite("share")
    gathers = [len(each.collectives.where(kind="all_gather", phase="backward")) for each in (program, shared)]
    assert gathers[0] == gathers[1] > 0


def test_a_bucket_that_is_not_reduced_is_found_at_its_steps() -> None:
    def unreduced(module: fx.GraphModule) -> None:
        for node in module.graph.nodes:
            if node.target is c10d.all_reduce.default:
                node.replace_all_uses_with(node.args[0])

    report = gpt("dp").rewrite("bucket", unreduced).verify()
    assert not report.ok
    assert report.first_divergence is not None
    assert report.first_divergence.step is not None
    assert report.first_divergence.step.op == "resolve"


def test_what_a_pass_of_the_users_sends_is_in_the_table() -> None:
    def twice(module: fx.GraphModule) -> None:
        for node in module.graph.find_nodes(op="call_function", target=WAIT):
            with module.graph.inserting_after(node):
                again = module.graph.call_function(c10d.all_reduce.default, (node, "avg", "dp"))
            with module.graph.inserting_after(again):
                waited = module.graph.call_function(WAIT, (again,))
            node.replace_all_uses_with(waited, delete_user_cb=lambda user, again=again: user is not again)

    program = sl.spmd_expand(nn.Linear(4, 2), torch.ones(8, 4), mesh=sl.Mesh(dp=4), batch="dp").program
    table = program.rewrite(twice).collectives
    assert [(each.reduce_op, each.payload_bytes) for each in table] == [
        ("sum", 32),
        ("avg", 32),
        ("sum", 8),
        ("avg", 8),
    ]


def test_a_name_that_no_pass_has_is_refused() -> None:
    with pytest.raises(sl.SpmdLabError, match="did you mean 'bucket'"):
        gpt("dp").rewrite("buckets")
