"""Small programs on which sharded PyTorch has gone wrong in public, in words and numbers of our own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Replicate, Shard

import spmd_lab as sl

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CASES", "Case"]

WHOLE = [Replicate()]


@dataclass(frozen=True)
class Case:
    """A program, its inputs, and where they lie.

    Parameters
    ----------
    what : str
        What has gone wrong elsewhere.
    build : callable
        Makes the program and its whole inputs.
    mesh : Mesh
        Where it runs.
    inputs, params
        As in `expand`.
    trains : bool
        Whether the first output is a loss, and gradients are compared.
    """

    what: str
    build: Callable[[], tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]
    mesh: sl.Mesh
    inputs: list[object]
    params: dict[str, object] = field(default_factory=dict)
    trains: bool = False


def weighted(value: torch.Tensor) -> torch.Tensor:
    """A loss in which every element has a weight of its own."""
    return (value * torch.linspace(0.5, 1.5, value.numel()).reshape(value.shape)).sum()


def seeded(module: nn.Module) -> nn.Module:
    """The same weights in every run."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return module


def drawn(*shape: int, seed: int = 0, learnt: bool = False) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_(learnt)


def a_number_added_to_a_sum() -> Any:
    return lambda x: (x.sum() + 3, x.sum() + torch.tensor(3.0), 3 - x.sum(), x.sum() * 2), (torch.arange(6.0)[:, None],)


def means_of_uneven_rows() -> Any:
    return lambda x, y: (x.mean(), x.mean(0), y.mean(), x.var(0)), (drawn(5, 3), drawn(1, 3, seed=1))


def rows_cut_anew_across_a_divided_dim() -> Any:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.view(15, 8)
        return (y * torch.linspace(0, 1, 8)).sum(1), y

    return program, (drawn(10, 12),)


def a_flattened_dim_with_an_empty_shard() -> Any:
    return lambda x: (x.reshape(-1) * 3, x.flatten().sum()), (drawn(6, 10),)


class Lookups(nn.Module):
    """Three tables, two of one shape, looked up at different places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other, self.third = nn.Embedding(11, 4), nn.Embedding(11, 2), nn.Embedding(11, 4)

    def forward(self, i: torch.Tensor, j: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = torch.cat([self.first(i) * self.third(j), self.other(j)], -1)
        return weighted(found.tanh()), found


def tables_of_one_vocabulary() -> Any:
    places = torch.tensor([[10, 0, 4], [5, 6, 10]]), torch.tensor([[2, 2, 7], [0, 9, 3]])
    return seeded(Lookups()), places


def a_mean_weighted_by_classes() -> Any:
    def program(scores: torch.Tensor, wanted: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(scores, wanted, weight=weight, ignore_index=1)

    wanted = torch.tensor([3, 3, 0, 1, 2, 0, 1, 3])
    return program, (drawn(8, 4, learnt=True), wanted, torch.tensor([0.2, 1.0, 4.0, 30.0]))


def log_probabilities_read_twice() -> Any:
    def program(scores: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        told = F.log_softmax(scores, -1)
        return F.nll_loss(told, wanted, ignore_index=-1) - 0.3 * (told.exp() * told).sum(-1).mean()

    return program, (drawn(7, 5, learnt=True), torch.tensor([4, 0, -1, 2, 1, -1, 3]))


class FrozenNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.norm, self.outside = nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 4)
        self.norm.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return weighted(self.outside(self.norm(self.inside(x))))


def a_norm_whose_weight_is_frozen() -> Any:
    return seeded(FrozenNorm()), (drawn(3, 4, 6),)


def writes_on_a_diagonal() -> Any:
    def program(base: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.arange(4)
        written = base.index_put((rows, rows), new)
        return written, written.index_put((rows, (rows + 3) % 4), new, accumulate=True)

    return program, (torch.ones(4, 4), torch.tensor([5.0, 6.0, 7.0, 8.0]))


def places_of_largest_values() -> Any:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, places = x.max(dim=1)
        return values, places, x.argmin(dim=1), x.argmax(), x.topk(2, dim=1).indices

    return program, (drawn(3, 8),)


def a_product_divided_in_two_orders() -> Any:
    return lambda a, b: a @ b, (torch.arange(32.0).reshape(4, 8), torch.arange(24.0).reshape(8, 3))


class Convolved(nn.Module):
    def __init__(self, *args: int, **how: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(*args, **how)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.conv(x)
        return weighted(y.tanh()), y


def patches_of_a_divided_width() -> Any:
    return seeded(Convolved(2, 3, 4, stride=4)), (drawn(2, 2, 8, 24, learnt=True),)


def a_wide_kernel_over_a_divided_batch() -> Any:
    return seeded(Convolved(2, 3, 5, stride=3, padding=2)), (drawn(4, 2, 11, 11, learnt=True),)


def one_row_for_many() -> Any:
    return lambda x, y: (x.expand(6, 4), x * y, y + x), (drawn(1, 4), drawn(6, 4, seed=1))


def attention_with_a_mask_by_keyword() -> Any:
    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return weighted(out), out

    heads = [drawn(2, 4, 5, 8, seed=seed, learnt=True) for seed in range(3)]
    return program, (*heads, torch.ones(5, 5, dtype=torch.bool).tril())


class Positions(nn.Module):
    """Positions and a mask that are made inside, and a buffer that nobody placed."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(6, 6)
        self.register_buffer("scale", torch.linspace(0.2, 1.2, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        place = torch.arange(length, dtype=x.dtype)[None, :, None] / length
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        mixed = self.mix(x * self.scale + place)
        looks = (mixed @ mixed.transpose(1, 2)).masked_fill(later, float("-inf")).softmax(-1)
        return weighted(looks @ mixed)


def positions_made_inside() -> Any:
    return seeded(Positions()), (drawn(2, 5, 6, learnt=True),)


def writes_into_a_pending_sum() -> Any:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        low, shifted, scaled = x.sum(0), x.sum(0), x.sum(0)
        low.clamp_(max=1.5)
        shifted.add_(2.0).relu_()
        scaled.mul_(3.0)
        return low, shifted, scaled

    return program, (torch.arange(-6.0, 6.0).reshape(6, 2),)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.mid, self.head = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.mid(self.words(tokens)).relu()).flatten(0, 1), wanted.flatten())


def a_table_that_is_the_head_too() -> Any:
    return seeded(Tied()), (torch.tensor([[8, 0, 3], [4, 5, 8]]), torch.tensor([[0, 3, 1], [5, 8, 2]]))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.norm(x)
        return weighted(y), y, self.norm.running_mean, self.norm.running_var


def statistics_of_an_uneven_batch() -> Any:
    return Normed(), ((drawn(5, 3) + torch.arange(5.0)[:, None]).requires_grad_(),)


TWO, FOUR = sl.Mesh(x=2), sl.Mesh(x=4)
ROWS, COLUMNS = [Shard(0)], [Shard(1)]

CASES = {
    case.build.__name__: case
    for case in (
        Case("every rank added the number", a_number_added_to_a_sum, TWO, [ROWS]),
        Case("local means were averaged", means_of_uneven_rows, TWO, [ROWS, ROWS]),
        Case("local data was kept under a new name", rows_cut_anew_across_a_divided_dim, FOUR, [COLUMNS]),
        Case("local sizes were made of global ones", a_flattened_dim_with_an_empty_shard, FOUR, [ROWS]),
        Case(
            "tables shared one mask",
            tables_of_one_vocabulary,
            TWO,
            [WHOLE, WHOLE],
            {"**.weight": ROWS},
            trains=True,
        ),
        Case("weights differ by rank", a_mean_weighted_by_classes, FOUR, [ROWS, ROWS, WHOLE], trains=True),
        Case("the second reader was forgotten", log_probabilities_read_twice, TWO, [COLUMNS, WHOLE], trains=True),
        Case(
            "a gradient that is None was taken for a tensor",
            a_norm_whose_weight_is_frozen,
            TWO,
            [COLUMNS],
            {"outside.weight": ROWS, "outside.bias": ROWS},
            trains=True,
        ),
        Case("global places were used in shards", writes_on_a_diagonal, FOUR, [ROWS, ROWS]),
        Case("local places were combined", places_of_largest_values, TWO, [COLUMNS]),
        Case(
            "wrong blocks were multiplied",
            a_product_divided_in_two_orders,
            sl.Mesh(x=2, y=2),
            ["m k/x/y", "k/y/x n"],
        ),
        Case(
            "the gradient of the input was called divided by rows",
            patches_of_a_divided_width,
            TWO,
            [[Shard(3)]],
            trains=True,
        ),
        Case("a check for another case refused it", a_wide_kernel_over_a_divided_batch, TWO, [ROWS], trains=True),
        Case("only one rank has the row", one_row_for_many, FOUR, [ROWS, ROWS]),
        Case(
            "keywords were not counted",
            attention_with_a_mask_by_keyword,
            TWO,
            [COLUMNS, COLUMNS, COLUMNS, WHOLE],
            trains=True,
        ),
        Case(
            "positions became local",
            positions_made_inside,
            TWO,
            [COLUMNS],
            {"mix.weight": ROWS, "mix.bias": ROWS},
            trains=True,
        ),
        Case("it ran before the sum was there", writes_into_a_pending_sum, FOUR, [ROWS]),
        Case(
            "two ways to one gradient were added twice",
            a_table_that_is_the_head_too,
            TWO,
            [WHOLE, WHOLE],
            {"words.weight": ROWS},
            trains=True,
        ),
        Case("statistics were not weighted by counts", statistics_of_an_uneven_batch, TWO, [ROWS], trains=True),
    )
}
