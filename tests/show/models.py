"""Small programs whose pictures, tables and pages the tests look at."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import nn
from torch.nn import functional

import spmd_lab as sl


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    def __init__(self, blocks: int, width: int = 16) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Unlike(nn.Module):
    """Blocks of which each has a width of its own, so that none shares a row with another."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        widths = range(16, 16 + 4 * blocks, 4)
        norms, ups, downs = zip(
            *((nn.LayerNorm(16), nn.Linear(16, width), nn.Linear(width, 16)) for width in widths), strict=True
        )
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"norm": norm, "up": up, "down": down})
            for norm, up, down in zip(norms, ups, downs, strict=True)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block["down"](block["up"](block["norm"](x)).relu())
        return x[:, :8]


def expanded(blocks: int = 2, module: nn.Module | None = None) -> sl.Expansion:
    """A stack on dp=2 x tp=2, column- and row-wise as usual."""
    torch.manual_seed(0)
    program = module or Stack(blocks)
    divided = any("up" in name for name, _ in program.named_parameters())
    x, targets = torch.randn(8, 16), torch.randint(8, (8,))
    return sl.spmd_expand(
        program,
        x,
        mesh=sl.Mesh(dp=2, tp=2),
        loss=lambda out: functional.cross_entropy(out, targets),
        batch="dp",
        params=sl.colwise("**.up", axis="tp") | sl.rowwise("**.down", axis="tp") if divided else {},
    )


@lru_cache
def large() -> sl.Expansion:
    """More than 1,800 steps; made once."""
    return expanded(60)


if __name__ == "__main__":  # what tests of determinism run twice
    from hashlib import sha256

    from spmd_lab.records import html_page

    expansion = expanded()
    report = expansion.program.verify()
    step = next(step for step in expansion.steps if step.collectives)
    values = [expansion, expansion.traced, expansion.program, expansion.collectives, step, report]
    texts = [repr(value) for value in values] + [value._repr_html_() for value in values]
    texts += [html_page(expansion, report), step.draw().svg, expansion.traced.draw().svg]
    print("\n".join(sha256(text.encode()).hexdigest() for text in texts))
