"""Random draws on a mesh are those of a single device with the same seed, bit by bit, whatever the layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spmd_lab as sl
from spmd_lab.errors import UnsupportedOperatorError
from spmd_lab.rules import random as draws

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "dropout of all": lambda x: F.dropout(x, 1.0),
    "dropout that is off": lambda x: F.dropout(x, 0.5, training=False) + torch.rand_like(x),
    "dropout of features": lambda x: F.dropout1d(x[None], 0.3),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.2, training=True),
    "one after the other": lambda x: F.dropout(F.dropout(x, 0.2).sin(), 0.7),
    "of a transpose": lambda x: F.dropout(x.t(), 0.5) + torch.rand_like(x.t()),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda x: torch.randint_like(x, 4),
    "factories": lambda x: (torch.rand(3), torch.randn(5, 2), torch.randint(5, (3,)), torch.randperm(5), x.sin()),
    "filled in place": lambda x: (
        x.new_empty(3).uniform_(0, 2),
        torch.empty_like(x).normal_(2, 3),
        torch.empty_like(x).exponential_(),
        torch.empty_like(x).bernoulli_(0.4),
        torch.empty_like(x).log_normal_(),
        torch.empty_like(x).cauchy_(),
        torch.empty_like(x).geometric_(0.3),
    ),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli of a number": lambda x: torch.bernoulli(x.detach(), 0.3),
    "normal": lambda x: torch.normal(x.detach(), 1.0),
    "of an expanded tensor": lambda x: F.dropout(x[:1].expand(6, 4), 0.5) + torch.rand_like(x[:1].expand(6, 4)),
    "multinomial of a transpose": lambda x: torch.multinomial(x.detach().t().sigmoid(), 2),
    "multinomial": lambda x: torch.multinomial(x.detach().sigmoid(), 2),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "gumbel_softmax": F.gumbel_softmax,
    "attention": lambda x: F.scaled_dot_product_attention(*[x.reshape(1, 1, 6, 4)] * 3, dropout_p=0.3),
}
PLACINGS = [
    ("a/x b", sl.Mesh(x=4)),
    ("a b/x", sl.Mesh(x=4)),
    ("a b{sum: x}", sl.Mesh(x=4)),
    ("a/x b/y", sl.Mesh(x=2, y=2)),
    ("a/y/x b", sl.Mesh(x=2, y=2)),
]


@pytest.mark.parametrize("name", PROGRAMS)
def test_draws_are_those_of_a_single_device(name: str) -> None:
    traced = sl.trace(PROGRAMS[name], torch.randn(6, 4, requires_grad=True))
    for placing, mesh in PLACINGS:
        expansion = sl.expand(traced, mesh, inputs=[placing])
        for seed in (0, 7):
            report = expansion.program.verify(seed=seed)
            assert report.ok, (placing, report)


def test_one_row_on_four_ranks() -> None:
    expansion = sl.spmd_expand(PROGRAMS["dropout"], torch.randn(1, 9, requires_grad=True), mesh=sl.Mesh(x=4), batch="x")
    expansion.program.verify().raise_if_wrong()


def test_the_draws_of_a_program_run_by_itself_follow_the_seed() -> None:
    program = sl.spmd_expand(lambda x: F.dropout(x, 0.5), torch.ones(8, 3), mesh=sl.Mesh(dp=2), batch="dp").program
    torch.manual_seed(5)
    whole = F.dropout(torch.ones(8, 3), 0.5)
    for rank in range(2):
        torch.manual_seed(5)
        (mine,) = program.for_rank(rank)(torch.ones(4, 3))
        assert torch.equal(mine, whole[4 * rank : 4 * rank + 4])


def test_random_state_is_left_as_it_was() -> None:
    program = sl.spmd_expand(lambda x: F.dropout(x, 0.5), torch.ones(8, 3), mesh=sl.Mesh(dp=2), batch="dp").program
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert program.verify().ok
    assert torch.equal(torch.get_rng_state(), before)


def test_a_draw_too_many_is_found() -> None:
    """Each draw advances the generator: one that is added shows in the next."""

    def program(x: torch.Tensor) -> torch.Tensor:
        first = torch.rand_like(x)
        return x * first + torch.rand_like(x)

    expansion = sl.spmd_expand(program, torch.ones(8, 3), mesh=sl.Mesh(dp=2), batch="dp")
    for module in {expansion.program.for_rank(rank) for rank in range(2)}:
        last = [node for node in module.graph.nodes if str(node.target) == "aten.rand_like.default"][-1]
        with module.graph.inserting_before(last):
            added = module.graph.call_function(torch.ops.aten.rand.default, ([1],))
        added.meta = {"spmd_step": last.meta["spmd_step"]}
        module.recompile()
    report = expansion.program.verify()
    assert report.first_divergence is not None
    assert report.first_divergence.step is not None
    assert report.first_divergence.step.name == "rand_like_1"


def test_what_is_drawn_is_said_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = sl.trace(lambda x: F.dropout(x, 0.5), torch.ones(8, 16))
    expansion = sl.expand(traced, sl.Mesh(dp=4), batch="dp")
    (step,) = expansion.steps
    assert step.draw_bytes == 8 * 16 * (4 + 1)
    assert "every rank draws the whole: 640 B" in repr(step)
    assert "every rank draws the whole: 640 B" in step._repr_html_()
    monkeypatch.setattr(draws, "MOST_DRAWN_BYTES", 100)
    with pytest.raises(UnsupportedOperatorError, match="every rank would draw all of it") as caught:
        sl.expand(traced, sl.Mesh(dp=8), batch="dp")
    assert "node: native_dropout" in str(caught.value)
    assert "line: test_random.py:" in str(caught.value)


class Dropping(nn.Module):
    """Attention and a perceptron with dropout everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, dropout=0.2, batch_first=True)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop(self.attention(x, x, x, need_weights=False)[0])
        return x + self.drop(self.down(self.drop(F.gelu(self.up(x)))))


@pytest.mark.parametrize(
    ("mesh", "placing"),
    [
        (sl.Mesh(dp=4), {"batch": "dp"}),
        (sl.Mesh(tp=4), {"params": sl.colwise("up", axis="tp") | sl.rowwise("down", axis="tp")}),
        (sl.Mesh(dp=2, tp=2), {"batch": "dp", "params": sl.colwise("up", axis="tp") | sl.rowwise("down", axis="tp")}),
    ],
)
def test_a_model_in_training_equals_the_single_device_run(mesh: sl.Mesh, placing: dict[str, Any]) -> None:
    torch.manual_seed(0)
    traced = sl.trace(Dropping(), torch.randn(5, 6, 16), loss=lambda out: out.square().mean())
    sl.expand(traced, mesh, **placing).program.verify(seed=3).raise_if_wrong()


LOCAL: dict[str, Callable[[torch.Tensor], Any]] = {
    "dropout": lambda x: F.dropout(x, 0.5).sin() * 2,
    "rand_like": lambda x: torch.rand_like(x) + x,
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()) * x,
    "filled in place": lambda x: torch.empty_like(x).normal_(2, 3) * x,
    "factories": lambda x: torch.rand(4) * x,
}


@pytest.mark.parametrize("name", LOCAL)
def test_local_draws_are_taken_as_they_come_and_all_else_is_judged(name: str) -> None:
    traced = sl.trace(LOCAL[name], torch.randn(6, 4, requires_grad=True))
    for placing, mesh in [*PLACINGS, ("a/x b", sl.Mesh(x=2, y=2))]:
        expansion = sl.expand(traced, mesh, inputs=[placing], random="local")
        report = expansion.program.verify()
        assert report.ok, (placing, report)
        assert report.draws_taken == sum(step.draws_locally for step in expansion.steps) * (
            2 if name == "dropout" else 1
        )


def test_shards_draw_their_own_numbers_and_copies_agree() -> None:
    mesh = sl.Mesh(x=2, y=2)
    traced = sl.trace(lambda x: torch.rand_like(x), torch.zeros(4, 3))
    expansion = sl.expand(traced, mesh, inputs=["a/x b"], random="local")
    (step,) = expansion.steps
    assert step.draws_locally
    assert step.draw_bytes == 2 * 3 * 4
    assert "each shard draws its own numbers: 24 B" in repr(step)
    drawn = []
    for rank in range(4):
        torch.manual_seed(0)
        drawn.append(expansion.program.for_rank(rank)(torch.zeros(2, 3))[0])
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[2], drawn[3])
    assert not torch.equal(drawn[0], drawn[2])
    report = expansion.program.verify()
    assert report.draws_taken == 1
    assert "1 local draw taken as ranks made them, outputs against the trace" in repr(report)


def test_copies_that_draw_apart_are_found() -> None:
    expansion = sl.expand(
        sl.trace(lambda x: torch.rand_like(x) * 2, torch.zeros(4, 3)),
        sl.Mesh(x=2, y=2),
        inputs=["a/x b"],
        random="local",
    )
    program = expansion.program
    module = program.for_rank(3)
    (draw,) = [node for node in module.graph.nodes if getattr(node.target, "__name__", "") == "draw_locally"]
    draw.update_arg(1, 99)
    module.recompile()
    graphs = {rank: program.for_rank(rank) for rank in range(4)}
    assert graphs[2] is graphs[3], "ranks that hold the same shard share a graph: spoil both alike, and nothing differs"
    assert program.verify().ok


def test_expanding_draws_nothing() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    for random in ("exact", "local"):
        traced = sl.trace(LOCAL["dropout"], torch.ones(6, 4))
        sl.expand(traced, sl.Mesh(x=3), inputs=["a/x b"], random=random)  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("random", ["exact", "local"])
def test_what_is_drawn_whole_after_shards_drew_their_own_is_what_all_ranks_draw(random: str) -> None:
    def drawn(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rand_like(x) + torch.multinomial(x.softmax(-1), 6) + torch.rand(6)

    expansion = sl.spmd_expand(drawn, torch.randn(10, 6), mesh=sl.Mesh(dp=3), batch="dp", random=random)
    assert {step.draws_locally for step in expansion.steps if step.draw_bytes} == {False, random == "local"}
    expansion.program.verify().raise_if_wrong()
