"""Models that go through time step by step, unrolled."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.specimen import Specimen

__all__ = ["MODELS"]


class Tagger(nn.Module):
    """An embedding, ``nn.LSTM`` or ``nn.GRU``, and a tag for every token."""

    def __init__(self, kind: type[nn.RNNBase], **options: object) -> None:
        super().__init__()
        self.embedding, self.cells = nn.Embedding(20, 8), kind(8, 6, batch_first=True, **options)
        self.out = nn.Linear(12 if options.get("bidirectional") else 6, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.cells(self.embedding(tokens))[0])


def _tagger(kind: type[nn.RNNBase], batch: int, **options: object) -> Specimen:
    tags = torch.randint(5, (batch, 4))
    return Specimen(
        Tagger(kind, **options),
        [torch.randint(20, (batch, 4))],
        loss=lambda out: F.cross_entropy(out.flatten(0, 1), tags.flatten()),
        rules={"embedding.weight": "v d/tp"},
    )


def torch_lstm() -> Specimen:
    return _tagger(nn.LSTM, 5, bidirectional=True)


def torch_gru() -> Specimen:
    return _tagger(nn.GRU, 6)


class HandWrittenLstm(nn.Module):
    """The four gates of an LSTM, from matrices that are divided by columns."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(4, 32), nn.Linear(8, 32, bias=False)
        self.out = nn.Linear(8, 1)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        h = c = series.new_zeros(series.shape[0], 8)
        for x in series.unbind(1):
            i, f, g, o = (self.x(x) + self.h(h)).view(-1, 4, 8).unbind(1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return self.out(h)


def hand_written_lstm() -> Specimen:
    targets = torch.randn(6, 1)
    return Specimen(
        HandWrittenLstm(),
        [torch.randn(6, 3, 4)],
        loss=lambda out: F.mse_loss(out, targets),
        rules={"x.weight": "(4 h/tp) i", "x.bias": "(4 h/tp)", "h.weight": "(4 h/tp) i"},
    )


class SelectiveScan(nn.Module):
    """In the manner of Mamba: a short causal convolution, a state whose decay depends on the input, a gate."""

    def __init__(self, width: int = 8, state: int = 4) -> None:
        super().__init__()
        self.state = state
        self.inside, self.gate = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.conv = nn.Conv1d(2 * width, 2 * width, 3, padding=2, groups=2 * width)
        self.select, self.pace = nn.Linear(2 * width, 2 * state, bias=False), nn.Linear(2 * width, 2 * width)
        self.decay = nn.Parameter(torch.rand(2 * width, state).log())
        self.skip, self.out = nn.Parameter(torch.ones(2 * width)), nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = self.inside(x)
        u = F.silu(self.conv(u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        write, read = self.select(u).chunk(2, -1)
        pace = F.softplus(self.pace(u))
        keep = torch.exp(-pace.unsqueeze(-1) * self.decay.exp())
        put = (pace * u).unsqueeze(-1) * write.unsqueeze(-2)
        h, seen = torch.zeros_like(put[:, 0]), []
        for t in range(x.shape[1]):
            h = keep[:, t] * h + put[:, t]
            seen.append(torch.einsum("bds,bs->bd", h, read[:, t]))
        y = torch.stack(seen, 1) + self.skip * u
        return self.out(y * F.silu(self.gate(x)))


def mamba() -> Specimen:
    targets = torch.randn(8, 4, 8)
    rules = {
        "inside.weight": "o/tp i", "gate.weight": "o/tp i", "conv.weight": "c/tp 1 k", "conv.bias": "c/tp",
        "decay": "c/tp s", "skip": "c/tp", "pace.weight": "o/tp i", "pace.bias": "o/tp", "out.weight": "o i/tp",
        "select.weight": "o i/tp",
    }  # fmt: skip
    return Specimen(SelectiveScan(), [torch.randn(8, 4, 8)], loss=lambda out: F.mse_loss(out, targets), rules=rules)


class Translator(nn.Module):
    """``nn.GRUCell`` reads a sentence; another writes, and looks at what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.reader, self.writer = nn.Embedding(16, 8), nn.GRUCell(8, 8), nn.LSTMCell(16, 8)
        self.out = nn.Linear(8, 16)

    def forward(self, sentence: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
        h = sentence.new_zeros(sentence.shape[0], 8, dtype=torch.float32)
        states = []
        for word in self.words(sentence).unbind(1):
            h = self.reader(word, h)
            states.append(h)
        read = torch.stack(states, 1)
        c, written = torch.zeros_like(h), []
        for word in self.words(answer).unbind(1):
            weights = (read * h.unsqueeze(1)).sum(-1).softmax(-1)
            seen = torch.bmm(weights.unsqueeze(1), read).squeeze(1)
            h, c = self.writer(torch.cat([word, seen], -1), (h, c))
            written.append(self.out(h))
        return torch.stack(written, 2)


def translator() -> Specimen:
    sentence, answer = torch.randint(16, (8, 3)), torch.randint(16, (8, 3))
    answer[0, 2] = 0
    return Specimen(
        Translator(),
        [sentence, answer],
        loss=lambda out: F.cross_entropy(out[..., :-1], answer[:, 1:], ignore_index=0, label_smoothing=0.1),
        rules={"words.weight": "v/tp d"},
    )


MODELS = (torch_lstm, torch_gru, hand_written_lstm, mamba, translator)
