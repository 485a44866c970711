"""Programs with something of their own: operators, backwards, transforms of functions, dtypes, routing, loops."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import checkpoint

from tests.models.specimen import Specimen, columns_then_rows

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PROGRAMS", "WIDTH", "Checkpointed", "CheckpointedSequence", "Mlp", "centre", "swish", "swish_backward"]

ROWS, WIDTH, HIDDEN = 5, 6, 8
PROGRAMS: dict[str, Callable[[], Specimen]] = {}


def program(make: Callable[[], Specimen]) -> Callable[[], Specimen]:
    PROGRAMS[make.__name__] = make
    return make


def uneven(out: torch.Tensor) -> torch.Tensor:
    """A loss in which every element has a weight of its own."""
    return (out.float() * torch.arange(1.0, out.numel() + 1).reshape(out.shape)).square().mean()


class Mlp(nn.Module):
    """Two layers with something between them."""

    def __init__(self, between: Callable[..., torch.Tensor] = F.gelu) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.between(self.up(x)))


def between(fn: Callable[..., Any]) -> Specimen:
    return of(Mlp(fn))


def of(model: Any, *args: Any, **options: Any) -> Specimen:
    found = {"rules": columns_then_rows(["up"], ["down"])} if isinstance(model, Mlp) else {}
    return Specimen(model, args or (torch.randn(ROWS, WIDTH),), **{"loss": uneven, **found, **options})


# --- operators of one's own ---------------------------------------------------------------------


@torch.library.custom_op("spmd_lab_composite::swish", mutates_args=())
def swish(x: torch.Tensor, beta: float) -> torch.Tensor:
    return x * torch.sigmoid(beta * x)


@torch.library.custom_op("spmd_lab_composite::swish_backward", mutates_args=())
def swish_backward(grad: torch.Tensor, x: torch.Tensor, beta: float) -> torch.Tensor:
    slope = torch.sigmoid(beta * x)
    return grad * slope * (1 + beta * x * (1 - slope))


@torch.library.custom_op("spmd_lab_composite::thirds", mutates_args=())
def thirds(x: torch.Tensor) -> list[torch.Tensor]:
    return [part.clone() for part in x.chunk(3, -1)]


@torch.library.custom_op("spmd_lab_composite::centre", mutates_args=("x", "sums"))
def centre(x: torch.Tensor, scale: torch.Tensor, sums: list[torch.Tensor]) -> torch.Tensor:
    mean = x.mean(-1, keepdim=True)
    x.sub_(mean)
    sums[0].add_(scale * x)
    return mean * 2


swish.register_fake(lambda x, beta: torch.empty_like(x))
swish_backward.register_fake(lambda grad, x, beta: torch.empty_like(x))
thirds.register_fake(lambda x: [part.contiguous() for part in x.chunk(3, -1)])
centre.register_fake(lambda x, scale, sums: x[..., :1].clone())


def keep_input(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.beta = inputs[1]


swish.register_autograd(
    lambda ctx, grad: (swish_backward(grad, ctx.saved_tensors[0], ctx.beta), None), setup_context=keep_input
)
thirds.register_autograd(lambda ctx, grads: torch.cat(grads, -1))


@program
def operator_with_a_backward() -> Specimen:
    return between(lambda hidden: swish(hidden, 1.5))


@program
def operator_that_gives_a_list() -> Specimen:
    return of(nn.Sequential(nn.Linear(WIDTH, 9), Product(), nn.Linear(3, WIDTH)), rules={"0.weight": "o/tp i"})


class Product(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two, three = thirds(x)
        return one * two + three


@program
def operator_that_writes_into_its_arguments() -> Specimen:
    def written(hidden: torch.Tensor) -> torch.Tensor:
        x, sums = hidden.detach().clone(), [torch.ones_like(hidden)]
        mean = centre(x, hidden.detach().abs(), sums)
        centre(x[:, 2:6], x[:, :4], [sums[0][:, 4:]])
        return hidden * x + sums[0] * mean

    return between(written)


class Counting(nn.Module):
    """Writes into a buffer by an operator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("seen", torch.rand(1, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centre(self.seen, x.detach().sum(0, keepdim=True), [torch.zeros(1, WIDTH)])
        return self.layer(x) * self.seen.sigmoid()


@program
def operator_that_writes_into_a_buffer() -> Specimen:
    return of(Counting(), rules={"**.weight": "o/tp i"})


# --- backwards of one's own ---------------------------------------------------------------------


class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, low: float, high: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.bounds = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,), (low, high) = ctx.saved_tensors, ctx.bounds
        return torch.where((x < low) | (x > high), 0.1 * grad, grad), None, None


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return (x > 0).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * (ctx.saved_tensors[0].abs() < 1)


class Affine(torch.autograd.Function):
    """A layer with a second output that has no gradient, and an argument that may be missing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        ctx.save_for_backward(x, weight)
        ctx.set_materialize_grads(False)
        out = x @ weight.t()
        return out if bias is None else out + bias, x.argmax(-1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, _: None) -> Any:
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.t() @ x, grad.sum(0) if ctx.needs_input_grad[2] else None


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return -grad


class WithAffine(Mlp):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, where = Affine.apply(x, self.up.weight, self.up.bias)
        other, _ = Affine.apply(hidden.tanh(), self.down.weight, None)
        return other * (where[:, None] > 2)


@program
def function_with_its_own_backward() -> Specimen:
    return between(lambda hidden: Straight.apply(Clamp.apply(hidden, -0.3, 0.5)) * InPlace.apply(hidden.clone()))


@program
def function_with_several_outputs() -> Specimen:
    return of(WithAffine())


# --- recomputation ------------------------------------------------------------------------------


class Checkpointed(Mlp):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint.checkpoint(super().forward, x, use_reentrant=False)


class CheckpointedSequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint.checkpoint_sequential(self.layers, 2, x, use_reentrant=False)


@program
def checkpointed() -> Specimen:
    return of(Checkpointed(lambda hidden: F.dropout(F.gelu(hidden), 0.5)))


@program
def checkpointed_sequence() -> Specimen:
    return of(CheckpointedSequence(), rules=columns_then_rows(["layers.0"], ["layers.2"]))


# --- complex numbers, dtypes --------------------------------------------------------------------


class Rotary(nn.Module):
    """Attention with positions turned into angles: halves swapped, or complex numbers multiplied."""

    def __init__(self, turned: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.q, self.k, self.o = (nn.Linear(16, 16, bias=False) for _ in range(3))
        self.turned = turned

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k = (self.turned(layer(x).unflatten(-1, (4, 4))).transpose(1, 2) for layer in (self.q, self.k))
        return self.o(((q @ k.mT / 2).softmax(-1) @ k).transpose(1, 2).flatten(2))


ANGLES = torch.outer(torch.arange(3.0), 100 ** -torch.arange(0, 1, 0.5))


def turned_as_complex(x: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.unflatten(-1, (2, 2)))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(ANGLES), ANGLES)[:, None]).flatten(3)


def turned_by_halves(x: torch.Tensor) -> torch.Tensor:
    angles = torch.cat([ANGLES, ANGLES], -1)[:, None]
    one, other = x.chunk(2, -1)
    return x * angles.cos() + torch.cat([-other, one], -1) * angles.sin()


@program
def rotary_by_complex_numbers() -> Specimen:
    rules = columns_then_rows(["q", "k"], ["o"])
    return of(Rotary(turned_as_complex), torch.randn(ROWS, 3, 16), rules=rules)


@program
def rotary_by_halves() -> Specimen:
    return of(Rotary(turned_by_halves), torch.randn(ROWS, 3, 16), rules=columns_then_rows(["q", "k"], ["o"]))


class ComplexLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.complex64))
        self.b = nn.Parameter(torch.randn(WIDTH, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.complex(x, x.flip(1)) @ self.w + self.b
        return z.abs() + 0.1 * z.angle() + (z * z.conj()).real + z.imag


@program
def complex_parameters() -> Specimen:
    return of(ComplexLayer(), rules={"w": "i o/tp", "b": "o/tp"})


@program
def bfloat16() -> Specimen:
    return of(Mlp().bfloat16(), torch.randn(ROWS, WIDTH).bfloat16())


class Autocast(Mlp):
    """A norm in float32 between layers in bfloat16, and a last layer outside."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = F.layer_norm(F.gelu(self.up(x)), (HIDDEN,))
            with torch.autocast("cpu", enabled=False):
                hidden = hidden.float() * torch.rsqrt(hidden.float().pow(2).mean(-1, keepdim=True) + 1e-5)
            return self.down(hidden).softmax(-1)


@program
def autocast() -> Specimen:
    return of(Autocast())


# --- einsum, masks, containers ------------------------------------------------------------------


class Einsums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(torch.randn(WIDTH, HIDDEN)), nn.Parameter(torch.randn(HIDDEN, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = torch.einsum("bi,io->bo", x, self.w)
        square = torch.einsum("bi,bj->bij", a, a)
        heads = torch.einsum("...i,oi->...o", x[:, None].expand(-1, 2, -1), self.v).unflatten(-1, (2, 4))
        scores = torch.einsum("bshd,bthd->bhst", heads, heads)
        terms = [
            torch.einsum("bij,bj,jo->bo", square, a, self.v),
            torch.einsum("bii->b", square)[:, None],
            torch.einsum("bhst->b", scores)[:, None],
            torch.einsum("bi,bi->", x, x),
        ]
        return torch.stack(torch.broadcast_tensors(*terms)).sum(0) / 100


@program
def einsums() -> Specimen:
    return of(Einsums(), rules={"w": "i o/tp", "v": "o/tp i"})


@program
def masks() -> Specimen:
    def masked(hidden: torch.Tensor) -> torch.Tensor:
        mask = (torch.arange(HIDDEN) % 2 == 0) & (hidden > 0)
        hidden = torch.where(mask, hidden, -0.1 * hidden).masked_fill(hidden > 1, 1.0)
        return torch.where(torch.isfinite(hidden), hidden, torch.zeros(())) * (hidden.sum(1, keepdim=True) > -1)

    return between(masked)


class Containers(nn.Module):
    """Parameters in lists and dicts; outputs in a dict, with None and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.randn(WIDTH, WIDTH) * 0.4 for _ in range(2)])
        self.scales = nn.ParameterDict({"gain": torch.rand(WIDTH)})
        self.layers = nn.ModuleDict({"last": nn.Linear(WIDTH, WIDTH)})

    def forward(self, x: torch.Tensor, none: None = None) -> dict[str, Any]:
        for weight in self.weights:
            x = (x @ weight).tanh() * self.scales["gain"]
        return {"out": self.layers["last"](x), "none": none, "rest": (x.sum(), None, [x * 2]), "count": 3}


@program
def containers() -> Specimen:
    rules = {"weights.0": "i o/tp", "weights.1": "i/tp o", "**.gain": "o/tp"}
    return of(Containers(), loss=lambda out: uneven(out["out"]) + out["rest"][0], rules=rules)


# --- parametrisations ---------------------------------------------------------------------------


class Symmetric(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).mT


@program
def parametrised() -> Specimen:
    model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, WIDTH))
    nn.utils.parametrizations.weight_norm(model[0])
    nn.utils.parametrize.register_parametrization(model[1], "weight", Symmetric())
    nn.utils.parametrizations.spectral_norm(model[2])
    return of(model, rules={"0.**": "o/tp ...", "1.**.original": "o i/tp"})


# --- loops --------------------------------------------------------------------------------------


class Scan(nn.Module):
    """A recurrence over time, written as a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.rand(HIDDEN))
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, states = x.new_zeros(x.shape[0], HIDDEN), []
        for step in self.up(x).unbind(1):
            state = state * self.decay.sigmoid() + step
            states.append(state)
        return self.down(torch.stack(states, 1).tanh())


@program
def scan() -> Specimen:
    rules = {**columns_then_rows(["up"], ["down"]), "decay": "d/tp"}
    return of(Scan(), torch.randn(ROWS, 3, WIDTH), rules=rules)


class Cells(nn.Module):
    """An LSTM as a loop over cells, and one as a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(WIDTH, 4 * HIDDEN), nn.Linear(HIDDEN, 4 * HIDDEN, bias=False)
        self.layer = nn.LSTM(HIDDEN, WIDTH, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = cell = x.new_zeros(x.shape[0], HIDDEN)
        states = []
        for step in range(x.shape[1]):
            enter, forget, new, leave = (self.x(x[:, step]) + self.h(hidden)).chunk(4, -1)
            cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
            hidden = leave.sigmoid() * cell.tanh()
            states.append(hidden)
        return self.layer(torch.stack(states, 1))[0][:, -1]


@program
def lstm_loop() -> Specimen:
    return of(Cells(), torch.randn(ROWS, 2, WIDTH), rules={"h.weight": "o i/tp"})


# --- experts ------------------------------------------------------------------------------------


class Experts(nn.Module):
    """The best two of four experts, each with room for three tokens."""

    count, room = 4, 3

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, self.count, bias=False)
        self.up = nn.Parameter(torch.randn(self.count, WIDTH, HIDDEN) / math.sqrt(WIDTH))
        self.down = nn.Parameter(torch.randn(self.count, HIDDEN, WIDTH) / math.sqrt(HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares, chosen = self.gate(x).softmax(-1).topk(2, -1)
        asked = F.one_hot(chosen, self.count)
        place = (asked.flatten(0, 1).cumsum(0) - 1).view_as(asked)
        kept = (place < self.room) & (asked > 0)
        seats = F.one_hot(place.clamp(0, self.room - 1), self.room) * kept[..., None]
        inside = torch.einsum("tkec,ti->eci", seats.to(x.dtype), x)
        outside = torch.bmm(torch.bmm(inside, self.up).relu(), self.down)
        return torch.einsum("tkec,tk,eci->ti", seats.to(x.dtype), shares, outside)


class ScatteredExperts(nn.Module):
    """Tokens are written into the room of their expert, and read from there."""

    count, room = 4, 2

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, self.count, bias=False)
        self.w = nn.Parameter(torch.randn(self.count, WIDTH, WIDTH) / math.sqrt(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share, chosen = self.gate(x).softmax(-1).max(-1)
        asked = F.one_hot(chosen, self.count)
        place = ((asked.cumsum(0) - 1) * asked).sum(-1)
        kept = (place < self.room)[:, None]
        seat = chosen * self.room + place.clamp(max=self.room - 1)
        inside = torch.zeros(self.count * self.room, WIDTH).index_add(0, seat, x * kept)
        outside = torch.bmm(inside.unflatten(0, (self.count, self.room)), self.w).flatten(0, 1)
        return outside[seat] * kept * share[:, None]


@program
def experts() -> Specimen:
    return of(Experts(), torch.randn(7, WIDTH), rules={"up": "e/tp i o", "down": "e/tp o i"})


@program
def scattered_experts() -> Specimen:
    return of(ScatteredExperts(), torch.randn(9, WIDTH), rules={"w": "e/tp i o"})


# --- transforms of functions --------------------------------------------------------------------


@program
def functional_call_with_parameters_as_arguments() -> Specimen:
    model = Mlp()
    parameters = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}

    def called(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, parameters, (x,))

    return of(called, parameters, torch.randn(ROWS, WIDTH), batch=("x",))


class Scaled(nn.Module):
    """Calls a module with parameters that it has computed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = Mlp(), nn.Parameter(torch.rand(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = {name: value * self.scale for name, value in self.inner.named_parameters()}
        return torch.func.functional_call(self.inner, scaled, (x,))


@program
def functional_call_inside() -> Specimen:
    return of(Scaled(), rules=columns_then_rows(["inner.up"], ["inner.down"]))


@program
def ensemble() -> Specimen:
    base = Mlp()
    stacked, _ = torch.func.stack_module_state([Mlp() for _ in range(3)])
    parameters = {name: value.detach().requires_grad_() for name, value in stacked.items()}

    def mean(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        each = torch.func.vmap(lambda own: torch.func.functional_call(base, own, (x,)))
        return each(parameters).mean(0)

    return of(mean, parameters, torch.randn(ROWS, WIDTH), batch=("x",))


class Transformed(Mlp):
    """An output with its own derivative in it."""

    def __init__(self, transform: Callable[..., Any]) -> None:
        super().__init__(torch.tanh)
        self.transform = transform

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.transform(super().forward, x)


@program
def gradient_inside() -> Specimen:
    return of(Transformed(lambda fn, x: fn(x) + torch.func.grad(lambda y: fn(y).square().sum())(x)))


@program
def autograd_inside() -> Specimen:
    def with_penalty(fn: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        y = x.detach().requires_grad_()
        out = fn(y)
        (slope,) = torch.autograd.grad(out.square().sum(), y, create_graph=True)
        return out + slope

    return of(Transformed(with_penalty))


@program
def forward_mode_inside() -> Specimen:
    return of(Transformed(lambda fn, x: sum(torch.func.jvp(fn, (x,), (torch.ones_like(x),)))))


@program
def mapped_over_rows() -> Specimen:
    return of(Transformed(lambda fn, x: torch.func.vmap(lambda row: fn(torch.outer(row, row)).sum(0))(x)))


@program
def jacobians_of_rows() -> Specimen:
    return of(Transformed(lambda fn, x: torch.func.vmap(torch.func.jacrev(fn))(x).sum(1)))


@program
def gradients_of_samples() -> Specimen:
    model = Mlp(torch.tanh)

    def norms(x: torch.Tensor) -> torch.Tensor:
        def loss(parameters: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(model, parameters, (row,)).square().sum()

        found = torch.func.vmap(torch.func.grad(loss), (None, 0))(dict(model.named_parameters()), x)
        return torch.stack([value.flatten(1).square().sum(1) for value in found.values()], 1)

    return of(norms)
