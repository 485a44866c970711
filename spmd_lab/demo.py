"""The demo: a GPT in a few lines, expanded over a mesh, proved equal, and shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F

from spmd_lab.expand import colwise, expand, rowwise
from spmd_lab.rebuild import rebuild
from spmd_lab.trace import trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from spmd_lab.expand import Expansion
    from spmd_lab.mesh import Mesh
    from spmd_lab.prove import VerifyReport

__all__ = ["GPT", "MEGATRON", "Block", "expand_demo", "run_demo"]


class Block(nn.Module):
    """Attention and a two-layer perceptron, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """From [batch, time, width] to [batch, head, time, width of a head]."""
        batch, time, width = x.shape
        return x.view(batch, time, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take and give [batch, time, width]."""
        y = self.n1(x)
        q, k, v = self.split(self.q(y)), self.split(self.k(y)), self.split(self.v(y))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        added: torch.Tensor = self.down(F.gelu(self.up(self.n2(x))))
        return x + added


class GPT(nn.Module):
    """A small language model: tokens in, logits out."""

    def __init__(
        self, layers: int = 2, width: int = 64, heads: int = 4, vocabulary: int = 256, length: int = 32
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """From [batch, time] to [batch, time, vocabulary]."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


MEGATRON = colwise("**.q", "**.k", "**.v", "**.up", axis="tp") | rowwise("**.o", "**.down", axis="tp")
"""The matrices of a block over ``tp``, by columns and then by rows."""


def expand_demo(mesh: Mesh, model: nn.Module, vocabulary: int, batch: int = 8, length: int = 32) -> Expansion:
    """Expand a GPT with the batch over ``dp``, and its matrices over ``tp`` by columns, then rows."""
    tokens = torch.arange(batch * length).reshape(batch, length).mul(7919) % vocabulary
    targets = tokens.roll(-1, dims=1)
    traced = trace(model, tokens, loss=lambda out: F.cross_entropy(out.flatten(0, 1), targets.flatten()))
    return expand(traced, mesh, batch="dp", params=MEGATRON)


def run_demo(mesh: Mesh, page: Path, say: Callable[[str], object] = print) -> VerifyReport:
    """Trace, expand, rebuild, prove and show; say each stage, and write the page.

    Parameters
    ----------
    mesh : Mesh
        With axes ``dp`` and ``tp``.
    page : Path
        Where the HTML page goes.
    say : callable
        Takes each paragraph.

    Returns
    -------
    VerifyReport
        The proof.
    """
    torch.manual_seed(0)
    expansion = expand_demo(mesh, GPT(), vocabulary=256)
    say(_titled("The traced program: what one device runs", repr(expansion.traced)))
    communicating = [repr(step) for step in expansion.steps if step.collectives and not step.only_moves]
    say(_titled(f"The {len(communicating)} steps that communicate", "\n\n".join(communicating)))
    say(_titled("The expansion, by line", repr(expansion)))
    say(_titled("Its collectives, by kind", str(expansion.collectives.by("kind"))))
    report = rebuild(expansion).verify()
    say(_titled("The proof: every rank simulated, every node compared", repr(report)))
    written = expansion.to_html(page, report)
    say(f"The page with every step: {written}")
    return report


def _titled(title: str, text: str) -> str:
    return f"{title}\n{'=' * len(title)}\n{text}\n"
