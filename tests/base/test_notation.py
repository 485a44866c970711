"""The notation: what is printed reads back, what is typed means what it says, what is wrong is explained."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from spmd_lab import Layout, Mesh
from spmd_lab.errors import NotationError
from spmd_lab.notation import DTYPES, dtype_name
from tests.base.strategies import layouts

MESH = Mesh(dp=2, tp=4)
F32 = torch.float32
R = Replicate()


def strided(dim: int, split_factor: int) -> _StridedShard:
    return _StridedShard(dim, split_factor=split_factor)


# --- there and back -----------------------------------------------------------------------------


@given(layouts())
@settings(max_examples=600)
def test_what_is_printed_reads_back(layout: Layout) -> None:
    assert Layout.parse(str(layout), layout.mesh) == layout
    assert Layout.parse(layout.with_local_sizes(), layout.mesh) == layout
    assert Layout.parse(str(layout), layout.mesh, layout.global_shape, layout.dtype) == layout


@given(layouts())
def test_a_printed_layout_is_one_line(layout: Layout) -> None:
    assert "\n" not in layout.with_local_sizes()
    assert repr(layout) == str(layout)


@pytest.mark.parametrize(
    ("shape", "placements", "text"),
    [
        ((16, 64), [R, R], "f32[16, 64]"),
        ((16, 64), [Shard(0), R], "f32[16/dp, 64]"),
        ((16, 64), [Shard(0), Shard(1)], "f32[16/dp, 64/tp]"),
        ((16, 64), [Shard(0), Shard(0)], "f32[16/dp/tp, 64]"),
        ((16, 64), [strided(0, 4), Shard(0)], "f32[16/tp/dp, 64]"),
        ((1024,), [R, strided(0, 64)], "f32[(64 16/tp)]"),
        ((64,), [R, strided(0, 4)], "f32[(4 16/tp)]"),
        ((64,), [Shard(0), strided(0, 4)], "f32[(8/dp 8/tp)]"),
        ((64,), [strided(0, 8), strided(0, 2)], "f32[(2 32/tp/dp)]"),
        ((60,), [strided(0, 5), R], "f32[(5 12/dp)]"),
        ((10,), [R, strided(0, 3)], "f32[10/tp~3]"),
        ((10,), [Shard(0), strided(0, 3)], "f32[10/dp/tp~3]"),
        ((5,), [strided(0, 4), Shard(0)], "f32[5/tp/dp]"),
        ((16, 64), [R, Partial()], "f32[16, 64]{sum: tp}"),
        ((16, 64), [Partial("avg"), Partial("avg")], "f32[16, 64]{avg: dp, tp}"),
        ((16, 64), [Partial("max"), Partial("product")], "f32[16, 64]{max: dp; product: tp}"),
        ((16, 64), [Shard(0), Partial("min")], "f32[16/dp, 64]{min: tp}"),
        ((), [Partial(), R], "f32[]{sum: dp}"),
        ((0, 3), [Shard(0), R], "f32[0/dp, 3]"),
    ],
)
def test_each_placement_and_its_text(shape: tuple[int, ...], placements: list[object], text: str) -> None:
    layout = Layout(shape, F32, MESH, placements)
    assert str(layout) == text
    assert Layout.parse(text, MESH) == layout


def test_an_order_of_three_axes() -> None:
    mesh = Mesh(pp=2, dp=3, tp=4)
    for order in itertools.permutations(mesh.axes):
        text = f"f32[{'/'.join(['48', *order])}]"
        layout = Layout.parse(text, mesh)
        assert str(layout) == text
        for rank in range(mesh.size):
            whole = torch.arange(48)
            for axis in order:
                whole = whole.chunk(mesh.axis_size(axis))[mesh.coordinate(rank)[mesh.axis_index(axis)]]
            assert torch.arange(48)[layout.slices(rank)].equal(whole)


def test_a_factored_dim_divides_its_factors() -> None:
    """The flattened view of a tensor that is divided along its own dims holds the same elements."""
    layout = Layout.parse("f32[(4/dp 3 8/tp)]", MESH)
    whole = torch.arange(96)
    for rank in range(8):
        dp, tp = MESH.coordinate(rank)
        expected = whole.reshape(4, 3, 8).chunk(2, 0)[dp].chunk(4, 2)[tp].flatten()
        assert whole[layout.slices(rank)].equal(expected)


@pytest.mark.parametrize("name", DTYPES)
def test_each_dtype(name: str) -> None:
    assert dtype_name(DTYPES[name]) == name
    layout = Layout.parse(f"{name}[8/dp]", MESH)
    assert layout.dtype == DTYPES[name]
    assert str(layout) == f"{name}[8/dp]"


def test_torch_names_of_dtypes_are_read() -> None:
    assert str(Layout.parse("float32[8]", MESH)) == "f32[8]"
    assert str(Layout.parse("float8_e8m0fnu[8]", MESH)) == "float8_e8m0fnu[8]"


# --- as a person types it -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shape", "printed"),
    [
        ("b/dp d", (16, 64), "f32[16/dp, 64]"),
        ("b/dp, d", (16, 64), "f32[16/dp, 64]"),
        ("  b/dp   d  ", (16, 64), "f32[16/dp, 64]"),
        ("b/dp ...", (16, 3, 3), "f32[16/dp, 3, 3]"),
        ("b/dp ...", (16,), "f32[16/dp]"),
        ("... d/tp", (16, 3, 64), "f32[16, 3, 64/tp]"),
        ("b/dp ... d/tp", (16, 3, 3, 64), "f32[16/dp, 3, 3, 64/tp]"),
        ("...", (), "f32[]"),
        ("", (), "f32[]"),
        ("{sum: tp}", (), "f32[]{sum: tp}"),
        ("16/dp 64", (16, 64), "f32[16/dp, 64]"),
        ("b/dp/tp", (16,), "f32[16/dp/tp]"),
        ("b/tp/dp", (16,), "f32[16/tp/dp]"),
        ("b d {max: dp}", (16, 64), "f32[16, 64]{max: dp}"),
        ("b d {max: dp; sum: tp}", (16, 64), "f32[16, 64]{max: dp; sum: tp}"),
        ("(4 b/tp)", (64,), "f32[(4 16/tp)]"),
        ("(a 16/tp) d", (64, 3), "f32[(4 16/tp), 3]"),
        ("(4/dp 8) d", (32, 3), "f32[32/dp, 3]"),
        ("(16/dp)", (16,), "f32[16/dp]"),
        ("f32[16/dp, 64] ▸ [8, 64]", (16, 64), "f32[16/dp, 64]"),
        ("f32[16/dp,64]{ sum:tp }", (16, 64), "f32[16/dp, 64]{sum: tp}"),
        ("b/tp~1", (16,), "f32[16/tp]"),
    ],
)
def test_what_is_typed_is_understood(text: str, shape: tuple[int, ...], printed: str) -> None:
    assert str(Layout.parse(text, MESH, shape=shape, dtype=F32)) == printed


def test_local_sizes() -> None:
    assert Layout.parse("f32[16/dp/tp, 64]", MESH).with_local_sizes() == "f32[16/dp/tp, 64] ▸ [2, 64]"
    assert Layout.parse("f32[5/tp]", MESH).with_local_sizes() == "f32[5/tp] ▸ [2] [2] [1] [0]"
    assert Layout.parse("f32[3/dp, 4]", MESH).with_local_sizes() == "f32[3/dp, 4] ▸ [2, 4] [1, 4]"
    assert Layout.parse("f32[]", MESH).with_local_sizes() == "f32[] ▸ []"
    both = "f32[3/dp, 5/tp] ▸ [2, 2] [2, 2] [2, 1] [2, 0] [1, 2] [1, 2] [1, 1] [1, 0]"
    assert Layout.parse("f32[3/dp, 5/tp]", MESH).with_local_sizes() == both


# --- errors -------------------------------------------------------------------------------------

SEPARATORS = "dims are separated by spaces or commas; (a b/tp) is one dim"
ONE_FACTOR = "integers from 1 for all factors but one, as in (64 b/tp)"
WHOLE = 'as in "f32[16/dp, 64]{sum: tp}" or "b/dp ..."'
NAME_FIRST = "a name or a size, then the axes: b/dp"
ONE_TERM = "one term a dim, or '...' for any number of undivided ones"
REDUCTIONS = "{sum: tp}, with one of sum, avg, max, min, product"
DTYPE_NAMES = "one of " + ", ".join(DTYPES)


@pytest.mark.parametrize(
    ("text", "shape", "what", "hint"),
    [
        ("b/dq d", (16, 64), "dp=2 x tp=4 has no axis 'dq'", "did you mean 'dp'?"),
        ("b/model d", (16, 64), "dp=2 x tp=4 has no axis 'model'", "there are: dp, tp"),
        ("b/ d", (16, 64), "'b/' has a '/' without an axis", "b/dp"),
        ("b//dp d", (16, 64), "'b//dp' has a '/' without an axis", "b/dp"),
        ("b/dp d/dp", (16, 64), "axis 'dp' is used twice", "an axis divides one dim, or is pending, once"),
        ("b/dp d {sum: dp}", (16, 64), "axis 'dp' is used twice", "an axis divides one dim, or is pending, once"),
        ("b/dp/dp d", (16, 64), "axis 'dp' is used twice", "an axis divides one dim, or is pending, once"),
        ("(4/dp 16/dp)", (64,), "axis 'dp' is used twice", "an axis divides one dim, or is pending, once"),
        ("15/dp d", (16, 64), "'15/dp' says 15, the dim has 16", "write 16, or any name"),
        ("-/dp d", (16, 64), "cannot read '-/dp'", NAME_FIRST),
        ("/dp d", (16, 64), "cannot read '/dp'", NAME_FIRST),
        ("b/dp) d", (16, 64), "a '(' is missing", WHOLE),
        ("((a b)) d", (16, 64), "cannot read '()'", SEPARATORS),
        ("b {sum: tp} d", (16, 64), "this does not read as a layout", 'as in "f32[16/dp, 64]{sum: tp}" or "b/dp ..."'),
        ("f32[16/dp, 64", (16, 64), "a ']' is missing", WHOLE),
        ("f23[16, 64]", (16, 64), "'f23' is no dtype", DTYPE_NAMES),
        ("i64[16, 64]", (16, 64), "the tensor is f32, not i64", "write f32[...]"),
        ("(4 16)/tp", (64,), "'/tp' after a factored dim", "divide a factor inside the parentheses, as in (64 16/tp)"),
        ("(4 15/tp)", (64,), "the factors of (4 15/tp) do not give 64", ONE_FACTOR),
        ("(5 b/tp)", (64,), "the factors of (5 b/tp) do not give 64", ONE_FACTOR),
        ("(a b/tp)", (64,), "the factors of (a b/tp) do not give 64", ONE_FACTOR),
        ("()", (1,), "the factors of () do not give 1", ONE_FACTOR),
        ("(0 b/tp)", (0,), "the factors of (0 b/tp) do not give 0", ONE_FACTOR),
        ("(4 -/tp)", (64,), "cannot read '(4 -/tp)'", NAME_FIRST),
        (
            "(4/tp/dp 16)",
            (64,),
            "4/tp/dp in '(4/tp/dp 16)' does not divide evenly",
            "a factored dim can only be divided evenly",
        ),
        ("(32 2/tp)", (64,), "2/tp in '(32 2/tp)' does not divide evenly", "a factored dim can only be divided evenly"),
        ("(4 16/tp~2)", (64,), "dp=2 x tp=4 has no axis 'tp~2'", "did you mean 'tp'?"),
        ("b/tp~0", (64,), "cannot read 'tp~0' in 'b/tp~0'", "a split factor from 1 after the axis: 10/tp~3"),
        ("b/tp~x", (64,), "cannot read 'tp~x' in 'b/tp~x'", "a split factor from 1 after the axis: 10/tp~3"),
        ("b/tp~", (64,), "cannot read 'tp~' in 'b/tp~'", "a split factor from 1 after the axis: 10/tp~3"),
        (
            "b/tp/dp~3",
            (64,),
            "the axes of 'b/tp/dp~3' are out of order",
            "where one has a split factor, in mesh order: dp, tp",
        ),
        ("b d {tp}", (16, 64), "cannot read {tp}", REDUCTIONS),
        ("b d {sum tp}", (16, 64), "cannot read {sum tp}", REDUCTIONS),
        ("b d {mean: tp}", (16, 64), "cannot read {mean: tp}", REDUCTIONS),
        ("b d {sum: }", (16, 64), "dp=2 x tp=4 has no axis ''", "there are: dp, tp"),
        ("b d {sum: tq}", (16, 64), "dp=2 x tp=4 has no axis 'tq'", "did you mean 'tp'?"),
    ],
)
def test_the_text_of_each_error(text: str, shape: tuple[int, ...], what: str, hint: str) -> None:
    with pytest.raises(NotationError) as caught:
        Layout.parse(text, MESH, shape=shape, dtype=F32)
    assert str(caught.value) == f"{what}\n  argument: {text!r}\n  try: {hint}"


@pytest.mark.parametrize(
    ("text", "shape", "what", "hint"),
    [
        ("b", (16, 64), "1 dim is written, the tensor has 2", ONE_TERM),
        ("b s d", (16, 64), "3 dims are written, the tensor has 2", ONE_TERM),
        ("b s ... d", (16, 64), "3 dims are written, the tensor has 2", ONE_TERM),
        ("b/dp", (), "1 dim is written, the tensor has 0", ONE_TERM),
        ("", (4,), "0 dims are written, the tensor has 1", ONE_TERM),
        ("... b ...", (16, 64), "'...' stands twice", "use it once, for any number of undivided dims"),
    ],
)
def test_an_error_of_dims_shows_the_shape(text: str, shape: tuple[int, ...], what: str, hint: str) -> None:
    with pytest.raises(NotationError) as caught:
        Layout.parse(text, MESH, shape=shape, dtype=F32)
    layout = f"  layout: tensor of shape: {list(shape)}\n"
    assert str(caught.value) == f"{what}\n  argument: {text!r}\n{layout}  try: {hint}"


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("f32[b/dp, 64]", "the size of 'b/dp' is not known here", "integers for the sizes, as in f32[16/dp, 64]"),
        ("f32[(a 16/tp)]", "the size of '(a 16/tp)' is not known here", "integers for the sizes, as in f32[16/dp, 64]"),
        ("f32[16/dp, ...]", "the size of '...' is not known here", "integers for the sizes, as in f32[16/dp, 64]"),
        ("16/dp, 64", "the dtype is missing", "f32[16/dp, 64]"),
    ],
)
def test_what_a_text_alone_must_say(text: str, what: str, hint: str) -> None:
    with pytest.raises(NotationError) as caught:
        Layout.parse(text, MESH)
    assert str(caught.value) == f"{what}\n  argument: {text!r}\n  try: {hint}"


@given(st.text(alphabet="bd 0123/~(),.[]{}:;▸-dptsumf", max_size=24))
@settings(max_examples=400)
def test_no_text_breaks_the_reader(text: str) -> None:
    """Any text reads as a layout that prints and reads back, or is refused by name."""
    try:
        layout = Layout.parse(text, MESH, shape=(12, 4), dtype=F32)
    except NotationError:
        return
    assert Layout.parse(str(layout), MESH) == layout
