"""Lines that a random program may have, each with what it needs beside the value that it begins with."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.prove.alarms.building import Building


class UnfitError(Exception):
    """A line cannot begin with this value."""


def need(holds: bool) -> None:
    """Go on only if something holds."""
    if not holds:
        raise UnfitError


UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu, "exp": torch.exp, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "sin": torch.sin,
    "abs": torch.abs, "neg": torch.neg, "gelu": F.gelu, "silu": F.silu, "square": torch.square, "sign": torch.sign,
    "floor": torch.floor, "erf": torch.erf, "softplus": F.softplus, "log1p(abs)": lambda x: x.abs().log1p(),
    "sqrt(abs)": lambda x: (x.abs() + 1e-3).sqrt(), "rsqrt": lambda x: (x.square() + 1e-5).rsqrt(),
    "reciprocal": lambda x: 1 / (x.abs() + 0.5), "clamp": lambda x: x.clamp(-0.5, 1.0), "x+1": lambda x: x + 1,
    "2.5x": lambda x: x * 2.5, "x/3": lambda x: x / 3, "x**3": lambda x: x**3, "leaky": lambda x: F.leaky_relu(x, 0.1),
    "x>0": lambda x: torch.where(x > 0, x, x * 0.5), "masked": lambda x: x.masked_fill(x < 0, -1e9),
    "nan_to_num": torch.nan_to_num, "clone": torch.clone, "logsigmoid": F.logsigmoid, "hardswish": F.hardswish,
}  # fmt: skip
BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "maximum": torch.maximum, "minimum": torch.minimum,
    "div": lambda x, y: x / (y.abs() + 0.5), "hypot": torch.hypot, "x+2y": lambda x, y: torch.add(x, y, alpha=2),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3), "where": lambda x, y: torch.where(y > 0, x, y),
    "mse": F.mse_loss, "l1": F.l1_loss, "smooth l1": F.smooth_l1_loss,
    "bce": F.binary_cross_entropy_with_logits, "squared distance": lambda x, y: (x - y).square().sum(-1),
}  # fmt: skip
ALONG: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "sum": lambda x, d: x.sum(d), "mean": lambda x, d: x.mean(d), "amax": lambda x, d: x.amax(d),
    "amin": lambda x, d: x.amin(d), "sum keep": lambda x, d: x.sum(d, keepdim=True), "max": lambda x, d: x.max(d)[0],
    "var": lambda x, d: x.var(d, correction=0), "std": lambda x, d: (x.var(d, correction=0) + 1e-3).sqrt(),
    "logsumexp": lambda x, d: x.logsumexp(d), "softmax": lambda x, d: x.softmax(d), "prod": lambda x, d: x.prod(d),
    "log_softmax": lambda x, d: x.log_softmax(d), "cumsum": lambda x, d: x.cumsum(d), "flip": lambda x, d: x.flip(d),
    "roll": lambda x, d: x.roll(1, d), "sort": lambda x, d: x.sort(d)[0], "norm": lambda x, d: x.norm(dim=d),
    "halves": lambda x, d: torch.cat(x.tensor_split(2, d)[::-1], d), "stack": lambda x, d: torch.stack([x, -x], d),
    "twice": lambda x, d: torch.cat([x, x * 2], d), "unsqueeze": lambda x, d: x.unsqueeze(d),
    "first": lambda x, d: x.select(d, 0), "tail": lambda x, d: x.tensor_split(2, d)[1],
    "every second": lambda x, d: x.movedim(d, 0)[::2], "argmax": lambda x, d: x.argmax(d).to(x.dtype),
    "last dim": lambda x, d: x.transpose(d, -1), "to front": lambda x, d: x.movedim(d, 0),
    "glu": lambda x, d: F.glu(torch.cat([x, x], d), d), "normalize": lambda x, d: F.normalize(x, dim=d),
}  # fmt: skip
WHOLE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum all": torch.sum, "mean all": torch.mean, "flatten": lambda x: x.reshape(-1), "t": lambda x: x.mT,
    "rows": lambda x: x.flatten(0, -2), "columns": lambda x: x.flatten(1),
    "repeat": lambda x: x.repeat(2, *[1] * (x.ndim - 1)),
    "split": lambda x: x.unflatten(0, (2, -1)), "pad": lambda x: F.pad(x, (1, 2), value=0.5), "tril": torch.tril,
    "expand": lambda x: x.unsqueeze(0).expand(3, *x.shape), "gram": lambda x: x @ x.mT,
    "amax all": torch.amax, "norm all": torch.linalg.vector_norm, "tril mask": lambda x: x.masked_fill(
        torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1), float("-inf")).softmax(-1),
}  # fmt: skip


def unary(build: Building, at: int) -> None:
    name = build.draw.choice(list(UNARY))
    build.add(name, UNARY[name], at)


def binary(build: Building, at: int) -> None:
    """With another value of the same shape, or a fresh one that is broadcast or as large."""
    name, x = build.draw.choice(list(BINARY)), build.values[at]
    same = [place for place, value in enumerate(build.values) if value.shape == x.shape and value.dtype == x.dtype]
    kind = build.draw.choice(["same", "fresh", "row", "column"])
    if kind == "same":
        other = build.draw.choice(same)
    elif kind == "row" and x.ndim and not name.startswith(("mse", "l1", "smooth", "bce")):
        other = build.fresh(x.shape[-1:])
    elif kind == "column" and x.ndim and not name.startswith(("mse", "l1", "smooth", "bce")):
        other = build.fresh((x.shape[0], *[1] * (x.ndim - 1)))
    else:
        other = build.fresh(x.shape, build.scale)
    need(x.ndim > 0 or "distance" not in name)
    build.add(name, BINARY[name], at, other)


def along(build: Building, at: int) -> None:
    name, x = build.draw.choice(list(ALONG)), build.values[at]
    need(x.ndim > 0 and x.numel() > 0)
    dim = build.draw.randrange(x.ndim)
    build.add(f"{name} {dim}", partial(_along, ALONG[name], dim), at)


def _along(function: Callable[[torch.Tensor, int], torch.Tensor], dim: int, x: torch.Tensor) -> torch.Tensor:
    return function(x, dim)


def whole(build: Building, at: int) -> None:
    name, x = build.draw.choice(list(WHOLE)), build.values[at]
    need(x.ndim > 0 and (x.ndim > 1 or name in ("sum all", "mean all", "flatten", "pad", "expand", "norm all")))
    need(name != "split" or x.shape[0] % 2 == 0)
    build.add(name, WHOLE[name], at)


# --- with parameters ------------------------------------------------------------------------------


def linear(build: Building, at: int) -> None:
    x = build.values[at]
    need(x.ndim > 0)
    wide = build.draw.choice([1, 3, 4, 6])
    weight = build.fresh((wide, x.shape[-1]))
    if build.draw.random() < 0.5:
        build.add("linear", F.linear, at, weight, build.fresh((wide,)))
    else:
        build.add("linear", F.linear, at, weight)


def product(build: Building, at: int) -> None:
    x = build.values[at]
    need(x.ndim > 1)
    batch = x.shape[:-2] if build.draw.random() < 0.5 else ()
    build.add("matmul", torch.matmul, at, build.fresh((*batch, x.shape[-1], build.draw.choice([1, 2, 5]))))


def einsum(build: Building, at: int) -> None:
    need(build.values[at].ndim == 3)
    a, b, c = build.values[at].shape
    text, shape = build.draw.choice([("abc,cd->abd", (c, 4)), ("abc,abd->acd", (a, b, 3)), ("abc,bc->a", (b, c))])
    build.add(text, partial(torch.einsum, text), at, build.fresh(shape))


def layer_norm(build: Building, at: int) -> None:
    x = build.values[at]
    need(x.ndim > 1 and x.numel() > 0)
    shape = x.shape[build.draw.randrange(1, x.ndim) :]
    if build.draw.random() < 0.5:
        weight, bias = build.fresh(shape), build.fresh(shape)
        build.add("layer_norm", lambda x, w, b: F.layer_norm(x, shape, w, b), at, weight, bias)
    else:
        build.add("rms_norm", lambda x, w: F.rms_norm(x, shape, w), at, build.fresh(shape))


def rms_by_hand(build: Building, at: int) -> None:
    x = build.values[at]
    need(x.ndim > 0 and x.numel() > 0)
    weight = build.fresh(x.shape[-1:])
    build.add("rms", lambda x, w: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w, at, weight)


def group_norm(build: Building, at: int) -> None:
    x = build.values[at]
    need(x.ndim == 3 and x.shape[1] % 2 == 0 and x.numel() > 0)
    weight, bias = build.fresh((x.shape[1],)), build.fresh((x.shape[1],))
    build.add("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b), at, weight, bias)


def batch_norm(build: Building, at: int) -> None:
    x = build.values[at]
    need(x.ndim in (2, 3) and x.shape[0] > 2 and x.numel() > 0)
    weight, bias = build.fresh((x.shape[1],)), build.fresh((x.shape[1],))
    build.add("batch_norm", lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), at, weight, bias)


def convolution(build: Building, at: int) -> None:
    x = build.values[at]
    need(x.ndim in (3, 4) and min(x.shape) > 0)
    call: Any = F.conv1d if x.ndim == 3 else F.conv2d
    weight, bias = build.fresh((4, x.shape[1], *[3] * (x.ndim - 2))), build.fresh((4,))
    build.add("conv", partial(call, padding=1), at, weight, bias)


def pooling(build: Building, at: int) -> None:
    x = build.values[at]
    need(x.ndim == 3 and x.shape[-1] > 1 and x.numel() > 0)
    name = build.draw.choice(["avg_pool", "max_pool"])
    build.add(name, partial(F.avg_pool1d if name == "avg_pool" else F.max_pool1d, kernel_size=2), at)


def attention(build: Building, at: int) -> None:
    x = build.values[at]
    need(x.ndim == 3 and x.numel() > 0)
    key, value = build.fresh(x.shape), build.fresh(x.shape)
    causal = build.draw.random() < 0.5
    build.add("attention", partial(F.scaled_dot_product_attention, is_causal=causal), at, key, value)


# --- with indices ---------------------------------------------------------------------------------


def embedding(build: Building, at: int) -> None:
    x = build.values[at]
    need(x.ndim == 2 and x.shape[0] > 0)
    tokens = build.indices(build.draw.choice([(4,), (3, 5)]), x.shape[0])
    build.add("embedding", F.embedding, tokens, at)


def select(build: Building, at: int) -> None:
    x = build.values[at]
    need(x.ndim > 0 and x.shape[0] > 0)
    kind = build.draw.choice(["index_select", "index", "index_add"])
    which = build.indices((4,), x.shape[0])
    if kind == "index_add":
        build.add(kind, lambda x, i, y: x.index_add(0, i, y), at, which, build.fresh((4, *x.shape[1:])))
    else:
        build.add(kind, (lambda x, i: x[i]) if kind == "index" else (lambda x, i: x.index_select(0, i)), at, which)


def gather(build: Building, at: int) -> None:
    x = build.values[at]
    need(x.ndim == 2 and x.numel() > 0)
    which = build.indices((x.shape[0], 2), x.shape[1])
    build.add("gather", lambda x, i: x.gather(1, i), at, which)


def classes(build: Building, at: int) -> None:
    x = build.values[at]
    need(x.ndim == 2 and x.numel() > 0)
    smoothing = build.draw.choice([0.0, 0.0, 0.1])
    targets = build.indices(x.shape[:1], x.shape[1])
    build.add("cross_entropy", partial(F.cross_entropy, label_smoothing=smoothing), at, targets)


def weighted_classes(build: Building, at: int) -> None:
    x = build.values[at]
    need(x.ndim == 2 and x.numel() > 0 and x.shape[0] > 1)
    targets, weight = build.indices(x.shape[:1], x.shape[1]), build.fresh(x.shape[1:])

    def loss(x: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        first = torch.arange(len(targets)) == 0
        return F.cross_entropy(x, targets.masked_fill(first, -100), weight.abs() + 0.1)

    build.add("weighted cross_entropy", loss, at, targets, weight)


def scatter(build: Building, at: int) -> None:
    x = build.values[at]
    need(x.ndim == 2 and x.numel() > 0)
    which = build.indices(x.shape, x.shape[0])
    build.add("scatter_add", lambda x, i, y: x.scatter_add(0, i, y), at, which, build.fresh(x.shape, build.scale))


def bag(build: Building, at: int) -> None:
    x = build.values[at]
    need(x.ndim == 2 and x.shape[0] > 0)
    mode = build.draw.choice(["sum", "mean"])
    build.add(f"bag {mode}", partial(F.embedding_bag, mode=mode), build.indices((3, 4), x.shape[0]), at)


def largest(build: Building, at: int) -> None:
    x = build.values[at]
    need(x.ndim > 0 and x.shape[-1] > 1)
    build.add("topk", lambda x: x.topk(2)[0], at)


def resized(build: Building, at: int) -> None:
    x = build.values[at]
    need(x.ndim == 3 and x.numel() > 0)
    mode = build.draw.choice(["linear", "nearest"])
    need(
        mode == "nearest" or not build.infinite
    )  # as torch traces it, a + (b - a) * w, it is not what eager torch does
    build.add(f"resized {mode}", partial(F.interpolate, size=5, mode=mode), at)


def converted(build: Building, at: int) -> None:
    """Mixed precision: there and back, with something in between."""
    other = build.draw.choice([torch.float32, torch.bfloat16, torch.float64])
    name = build.draw.choice(list(UNARY))
    build.add(f"{name} in {other}", lambda x: UNARY[name](x.to(other)).to(x.dtype), at)


def in_place(build: Building, at: int) -> None:
    x = build.values[at]
    need(x.ndim > 0 and x.shape[0] > 1)
    build.add("in place", _written, at, build.fresh(x.shape[1:]))


def _written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    copy = x.clone()
    copy[0] = y
    return copy.mul_(2).add_(1)


def dropout(build: Building, at: int) -> None:
    build.add("dropout", lambda x: F.dropout(x, 0.4, training=True), at)


GROWS: tuple[Callable[[Building, int], None], ...] = (
    *(unary,) * 5, *(binary,) * 5, *(along,) * 6, *(whole,) * 3, *(linear,) * 4, *(product,) * 2,
    einsum, layer_norm, layer_norm, rms_by_hand, group_norm, batch_norm, convolution, pooling, attention,
    embedding, select, gather, classes, dropout, weighted_classes, scatter, bag, largest, resized, converted, converted,
    in_place,
)  # fmt: skip
"""Everything that a program may grow by, the more common the more often."""
