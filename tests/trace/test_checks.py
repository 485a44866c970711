"""Where torch looks at data only to refuse it, the program goes on, and asserts on every rank what torch asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import (
    Bernoulli,
    Categorical,
    ContinuousBernoulli,
    Dirichlet,
    Distribution,
    Geometric,
    MultivariateNormal,
    Normal,
    kl_divergence,
)

import spmd_lab as sl
from spmd_lab import trace
from spmd_lab.errors import TraceError
from tests.trace.programs import check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def checking() -> Iterator[None]:
    """Distributions check what they are given; ``torch.compile`` turns that off for the whole process."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(True)
    yield
    Distribution.set_default_validate_args(before)


def divergence(mean: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return kl_divergence(Normal(mean, scale), Normal(torch.zeros_like(mean), torch.ones_like(scale))).sum(-1)


PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "gaussian_nll_loss": lambda x, scale: F.gaussian_nll_loss(x, x.detach() + 1, scale),
    "Normal": lambda x, scale: Normal(x, scale).log_prob(x + 1),
    "kl_divergence": divergence,
    "Categorical": lambda x, _: Categorical(logits=x).log_prob(torch.arange(5) % 3),
    "Bernoulli": lambda x, _: Bernoulli(logits=x).log_prob((x > 0).float()),
    "ContinuousBernoulli": lambda x, _: ContinuousBernoulli(x.sigmoid()).mean,
    "Geometric": lambda x, _: Geometric(x.sigmoid()).entropy(),
    "Dirichlet": lambda _, scale: Dirichlet(scale).log_prob(torch.tensor([0.2, 0.3, 0.5])),
    "MultivariateNormal": lambda x, scale: MultivariateNormal(x, scale.diag_embed()).log_prob(x.detach() + 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_with_checks_of_torchs(name: str) -> None:
    x, scale = torch.randn(5, 3, requires_grad=True), torch.rand(5, 3) + 0.5
    traced = check(trace(PROGRAMS[name], x, scale.requires_grad_()))
    assert any("assert" in str(node.target) for node in traced.op_nodes)
    sl.expand(traced, sl.Mesh(x=4), inputs=["n/x d", "n/x d"]).program.verify().raise_if_wrong()


def test_ranks_refuse_what_torch_refuses() -> None:
    traced = trace(PROGRAMS["kl_divergence"], torch.randn(4, 3), torch.rand(4, 3) + 0.5)
    expansion = sl.expand(traced, sl.Mesh(x=2), inputs=["n/x d", "n/x d"], unsupported="error")
    assert not expansion.collectives
    run = sl.rebuild(expansion).for_rank(1)
    run(torch.randn(2, 3), torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="refuses"):
        run(torch.randn(2, 3), torch.tensor([1.0, 1.0, -1.0]).expand(2, 3))


def test_a_check_of_the_users_needs_data() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return x if (x > 0).all() else -x

    with pytest.raises(TraceError, match="needs the value"):
        trace(branch, torch.randn(3))
    assert "__bool__" not in vars(type(trace(torch.sin, torch.randn(3)).values[0]))


def test_a_mask_of_a_transformer_is_added_whatever_it_is() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    check(
        trace(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), torch.randn(2, 5, 8), kwargs={"mask": mask})
    )
