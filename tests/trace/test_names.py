"""How inputs and outputs are called."""

from __future__ import annotations

import types
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from spmd_lab import Mesh, expand, trace
from spmd_lab.trace.trees import flatten
from tests.trace.programs import GPT, Normed, check, names, output_names


@dataclass
class Batch:
    ids: torch.Tensor
    mask: torch.Tensor
    scale: int = 3


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(4, 3)


def test_parameters_buffers_inputs_come_in_this_order(x: torch.Tensor) -> None:
    traced = check(trace(Normed(), x))
    assert [(each.name, each.role, each.node) for each in traced.inputs] == [
        ("bn.weight", "parameter", "bn_weight"),
        ("bn.bias", "parameter", "bn_bias"),
        ("fc.weight", "parameter", "fc_weight"),
        ("fc.bias", "parameter", "fc_bias"),
        ("bn.running_mean", "buffer", "bn_running_mean"),
        ("bn.running_var", "buffer", "bn_running_var"),
        ("bn.num_batches_tracked", "buffer", "bn_num_batches_tracked"),
        ("x", "input", "x"),
        ("tangent(out)", "tangent", "tangent_out"),
    ]
    assert [each.owner for each in traced.inputs[:5]] == [
        "BatchNorm1d",
        "BatchNorm1d",
        "Linear",
        "Linear",
        "BatchNorm1d",
    ]
    assert traced.name == "Normed"


def test_inputs_go_by_the_signature_and_the_path(x: torch.Tensor) -> None:
    def program(batch, xs, *args, scale=1, **more):
        return batch.ids * batch.mask * batch.scale + xs[0] + xs[1]["q"] + args[0] * scale + more["extra"].a

    values = [torch.randn(4, 3) for _ in range(6)]
    extra = types.SimpleNamespace(a=values[5], b="text")
    traced = check(
        trace(
            program,
            Batch(values[0], values[1]),
            [values[2], {"q": values[3]}],
            values[4],
            kwargs={"extra": extra, "scale": 2},
        )
    )
    assert names(traced) == ["batch.ids", "batch.mask", "xs[0]", "xs[1].q", "args[0]", "extra.a"]
    assert [each.node for each in traced.inputs] == ["batch_ids", "batch_mask", "xs_0", "xs_1_q", "args_0", "extra_a"]
    assert all(value is given for value, given in zip(traced.values, values, strict=True))


def test_keyword_arguments_keep_the_order_of_the_signature(x: torch.Tensor) -> None:
    traced = check(trace(lambda a, b, c: a - b * c, kwargs={"c": x, "b": x + 1, "a": x + 2}))
    assert names(traced) == ["a", "b", "c"]


def test_a_callable_without_a_signature(x: torch.Tensor) -> None:
    assert names(check(trace(torch.add, x, x))) == ["args[0]", "args[1]"]


def test_an_input_may_be_called_like_a_parameter_or_a_keyword(x: torch.Tensor) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return weight * self.weight

    traced = check(trace(Scaled(), x))
    assert names(traced) == ["weight", "weight_1", "tangent(out)"]
    assert names(check(trace(lambda **kwargs: kwargs["lambda"] * 2, kwargs={"lambda": x}))) == ["lambda"]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lambda x: x * 2, ["out"]),
        (lambda x: [x * 2], ["out[0]"]),
        (lambda x: (x * 2, x + 1), ["out[0]", "out[1]"]),
        (lambda x: {"a": x * 2, "b": [x + 1, (x,)]}, ["out.a", "out.b[0]", "out.b[1][0]"]),
        (lambda x: Batch(x * 2, x + 1), ["out.ids", "out.mask", "out.scale"]),
        (lambda x: (x * 2, None, 7, "text"), ["out[0]", "out[1]", "out[2]", "out[3]"]),
    ],
)
def test_outputs_go_by_their_path(program, expected: list[str], x: torch.Tensor) -> None:
    traced = check(trace(program, x))
    assert output_names(traced) == expected
    assert {each.role for each in traced.outputs} == {"output"}


def test_constants_keep_their_place_among_the_outputs(x: torch.Tensor) -> None:
    traced = check(trace(lambda x: (x * 2, None, 7, "text"), x))
    assert traced.graph_module(x)[1:] == (None, 7, "text")
    assert [each.global_shape for each in traced.outputs] == [(4, 3), None, None, None]


def test_what_is_returned_can_be_put_together_again(x: torch.Tensor) -> None:
    traced = trace(lambda x: {"a": (x, 5), "b": Batch(x, x * 2)}, x, loss=lambda out: out["a"][0].sum())
    flat = [f"value of {each.name}" for each in traced.outputs if each.role == "output"]
    assert traced.structure is not None
    assert traced.structure.assemble(flat) == {
        "a": ("value of out.a[0]", 5),
        "b": Batch("value of out.b.ids", "value of out.b.mask", 3),  # type: ignore[arg-type]
    }


def test_tied_parameters_are_one_input_with_aliases() -> None:
    traced = check(trace(GPT(), torch.randint(32, (2, 8)), loss=lambda out: out.square().mean()))
    tied = traced.input("head.weight")
    assert (tied.name, tied.aliases, tied.owner) == ("embed.weight", ("head.weight",), "Embedding")
    assert output_names(traced).count("grad(embed.weight)") == 1
    assert "grad(head.weight)" not in output_names(traced)


def test_one_tensor_passed_twice_is_two_inputs(x: torch.Tensor) -> None:
    assert names(check(trace(lambda a, b: a * b, x, x))) == ["a", "b"]


def test_containers_come_back_as_they_were(x: torch.Tensor) -> None:
    class Own(dict):
        pass

    seen: list[object] = []

    def program(batch, own):
        seen.append((type(batch), type(own), own["n"]))
        return batch.ids + own["t"]

    check(trace(program, Batch(x, x), Own(t=x, n=3)))
    assert set(seen) == {(Batch, Own, 3)}


def test_leaves_and_their_paths() -> None:
    tree = flatten({"a": [1, (2, None)], 3: {"b": Batch(4, 5)}}, "v")  # type: ignore[arg-type]
    assert [leaf.name for leaf in tree.leaves] == [
        "v.a[0]", "v.a[1][0]", "v.a[1][1]", "v[3].b.ids", "v[3].b.mask", "v[3].b.scale",
    ]  # fmt: skip
    again = tree.rebuild(iter([leaf.value for leaf in tree.leaves]))
    assert again == {"a": [1, (2, None)], 3: {"b": Batch(4, 5)}}  # type: ignore[arg-type]


class Alike(nn.Module):
    """Modules whose names differ in nothing that an identifier may have."""

    def __init__(self) -> None:
        super().__init__()
        self.a_b, self.a = nn.Linear(4, 4), nn.Module()
        self.a.b = nn.Linear(4, 4)
        for name in ('"]}', "-->", "漢字 🎉", "new\nline"):
            self.add_module(name, nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a.b(self.a_b(x))
        for name, module in self.named_children():
            x = x if name.startswith("a") else module(x)
        return x


def test_names_that_become_the_same_identifier() -> None:
    traced = trace(Alike(), torch.randn(2, 4))
    names = [node.name for node in traced.graph_module.graph.find_nodes(op="placeholder")]
    assert len(set(names)) == len(names) == len(traced.inputs)
    assert {found.name for found in traced.inputs} >= {"a_b.weight", "a.b.weight", '"]}.weight', "-->.bias"}
    assert expand(traced, Mesh(dp=2), batch="dp").program.verify().ok
