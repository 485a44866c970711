"""Parameters that rest otherwise than they are used: each is gathered where it is read, its gradient goes back."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import fx, nn
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional as F

import spmd_lab as sl
from spmd_lab.demo import GPT, MEGATRON
from spmd_lab.errors import PatternError
from spmd_lab.rewrite import PASSES, overlap
from spmd_lab.rewrite import gathers as gathers_of_groups
from tests.models.zoo import traced
from tests.prove.mutants import weighted
from tests.run.test_halves import halves_of

if TYPE_CHECKING:
    from pathlib import Path


class Mlp(nn.Module):
    def __init__(self, width: int = 8, hidden: int = 16) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(width, hidden), nn.LayerNorm(hidden), nn.Linear(hidden, width)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(F.gelu(self.up(x)))) * self.scale


COLUMNS_THEN_ROWS = sl.colwise("up", axis="tp") | sl.rowwise("down", axis="tp")


def proved(fn: Any, *args: Any, mesh: sl.Mesh, **how: Any) -> sl.Expansion:
    """Expanded, and equal to the single device: as it is, and after every pass."""
    expansion = sl.spmd_expand(fn, *args, mesh=mesh, **how)
    expansion.program.verify().raise_if_wrong()
    expansion.program.rewrite(*PASSES).verify().raise_if_wrong()
    return expansion


def kinds(collectives: Any) -> Counter[tuple[str, str]]:
    return Counter((each.kind, each.phase) for each in collectives)


# --- what is sent, and where ---


def test_each_parameter_is_gathered_in_each_phase_and_its_gradient_scattered_once() -> None:
    model = Mlp()
    expansion = proved(model, torch.randn(8, 8), mesh=sl.Mesh(dp=4), batch="dp", stored=sl.fsdp("dp"), loss=weighted)
    divided = [name for name, parameter in model.named_parameters() if parameter.ndim]
    steps = {step.name: step for step in expansion.steps}
    assert [name for name in steps if name.startswith("gather:")] == [f"gather:{name}" for name in divided]
    again = [name for name in steps if name.startswith("regather:")]
    assert again == ["regather:down.weight", "regather:norm.weight", "regather:norm.bias"]  # x needs no gradient
    for name in divided:
        size = model.get_parameter(name).numel() * 4
        gathered, scattered = steps[f"gather:{name}"], steps[f"resolve:grad({name})"]
        assert [(each.kind, each.payload_bytes) for each in gathered.collectives] == [("all_gather", size)]
        assert [(each.kind, each.payload_bytes) for each in scattered.collectives] == [("reduce_scatter", size)]
        assert scattered.outputs == (expansion.layout(name),)
    assert [each.kind for each in steps["resolve:grad(scale)"].collectives] == ["all_reduce"]
    assert [each for each in expansion.collectives if not steps[each.step].only_moves] == []


def test_what_is_not_gathered_again_is_gathered_once() -> None:
    how = {"mesh": sl.Mesh(dp=4), "batch": "dp", "stored": sl.fsdp("dp"), "loss": weighted}
    once = proved(Mlp(), torch.randn(8, 8), regather=False, **how)
    assert kinds(once.collectives) == {
        ("all_gather", "forward"): 6,
        ("reduce_scatter", "backward"): 6,
        ("all_reduce", "forward"): 1,
        ("all_reduce", "backward"): 1,
    }
    assert not [step for step in once.steps if step.name.startswith("regather:")]


def test_a_parameter_has_its_layout_at_rest_and_operators_read_what_is_gathered() -> None:
    expansion = proved(
        Mlp(),
        torch.randn(8, 8),
        mesh=sl.Mesh(dp=2, tp=2),
        batch="dp",
        params=COLUMNS_THEN_ROWS,
        stored=sl.fsdp("dp"),
        loss=weighted,
    )
    at_rest = {name: str(expansion.layout(name)) for name in ("up.weight", "up.bias", "down.weight", "scale")}
    assert at_rest == {
        "up.weight": "f32[16/tp/dp, 8]",
        "up.bias": "f32[16/tp/dp]",
        "down.weight": "f32[8/dp, 16/tp]",
        "scale": "f32[]",
    }
    assert str(expansion.layout("gather:up.weight")) == str(expansion.in_use["up.weight"]) == "f32[16/tp, 8]"
    assert str(expansion.layout("grad(up.weight)")) == "f32[16/tp/dp, 8]"
    (weight,) = [each for each in expansion["t"].operands if each.have.global_shape == (16, 8)]
    assert (weight.name, str(weight.have)) == ("gather:up.weight", "f32[16/tp, 8]")
    gather = expansion["gather:up.weight"]
    assert (gather.op, gather.phase, gather.source.module) == ("gather", "forward", "up")
    assert [(each.kind, each.axes) for each in gather.collectives] == [("all_gather", ("dp",))]
    assert expansion.layout("up.weight") in expansion.program.input_layouts


@pytest.mark.parametrize(("rows", "ranks"), [(10, 4), (3, 4)], ids=["uneven", "empty"])
@pytest.mark.parametrize("regather", [True, False])
def test_shards_may_be_uneven_or_empty(rows: int, ranks: int, regather: bool) -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    how = {"mesh": sl.Mesh(dp=ranks), "batch": "dp", "stored": sl.fsdp("dp"), "regather": regather}
    proved(model, torch.randn(rows, 5), loss=weighted, **how)


@pytest.mark.parametrize("stored", ["o/tp/dp i", "o/dp/tp i", "o/tp i/dp", "o/dp i", "o i", "o/dp i/tp"])
def test_any_layout_at_rest_goes_with_any_layout_in_use(stored: str) -> None:
    """Also on shards that nothing divides evenly, also where a parameter rests whole, or is exchanged."""
    model, mesh = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), sl.Mesh(dp=2, tp=3)
    for used in ("o/tp i", "o i/tp"):
        rules = {"0.weight": used}
        proved(model, torch.randn(6, 5), mesh=mesh, batch="dp", params=rules, stored={"**.weight": stored})


@pytest.mark.parametrize("mesh", [{"dp": 4}, {"dp": 2, "tp": 2}], ids=str)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_models_are_equal_with_parameters_divided_at_rest(name: str, mesh: dict[str, int]) -> None:
    specimen, trace = traced(name)
    rules = specimen.rules if "tp" in mesh else {}
    expansion = sl.expand(trace, sl.Mesh(**mesh), rules, batch="dp", stored=sl.fsdp("dp"))
    expansion.program.rewrite(*PASSES).verify().raise_if_wrong()


def test_tied_parameters_are_gathered_together() -> None:
    _, trace = traced("gpt2")
    expansion = sl.expand(trace, sl.Mesh(dp=2), batch="dp", stored=sl.fsdp("dp"))
    tied = trace.input("lm_head.weight")
    assert len(tied.names) == 2
    assert [step.name for step in expansion.steps if tied.name in [each.name for each in step.operands]] == [
        f"gather:{tied.name}",
        f"regather:{tied.name}",
    ]
    assert [each.kind for each in expansion.step(f"resolve:grad({tied.name})").collectives] == ["reduce_scatter"]


def test_a_batch_may_lie_over_copies_of_the_shards_too() -> None:
    """Hybrid sharding: gathered within a group; gradients are scattered there, then summed over the groups."""
    mesh = sl.Mesh(copies=2, shards=2)
    inputs = {"x": "b/copies/shards d"}
    expansion = proved(Mlp(), torch.randn(8, 8), mesh=mesh, inputs=inputs, stored=sl.fsdp("shards"), loss=weighted)
    sent = expansion.step("resolve:grad(up.weight)").collectives
    assert [(each.kind, each.axes) for each in sent] == [("reduce_scatter", ("shards",)), ("all_reduce", ("copies",))]
    assert sent[1].payload_bytes == sent[0].payload_bytes // 2
    both = proved(Mlp(), torch.randn(8, 8), mesh=mesh, inputs=inputs, stored=sl.fsdp("copies", "shards"))
    assert str(both.layout("up.weight")) == "f32[16/copies/shards, 8]"


# --- what is kept between the halves ---


def kept_of_parameters(program: sl.Program) -> list[str]:
    """What the forward saves that is made of parameters alone: by the parameters, what is gathered of them excepted."""
    forward = halves_of(program)
    parameters = {found.node for found in program.expansion.traced.inputs if found.role == "parameter"}
    made = dict[fx.Node, bool]()
    for node in forward.forward.graph.nodes:
        reads = [made[each] for each in node.all_input_nodes]
        made[node] = node.name in parameters or (bool(reads) and all(reads))
    returned = forward.forward.graph.output_node().args[0]
    return [node.name for node in returned[forward.results :] if made[node] and node.op != "placeholder"]


@pytest.mark.parametrize("passes", [(), tuple(PASSES)], ids=["as expanded", "with every pass"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "convnext", "torch_multihead"])
def test_no_gathered_parameter_is_kept_between_the_halves(name: str, passes: tuple[str, ...]) -> None:
    specimen, trace = traced(name)
    batch = specimen.batch_along("dp")
    again, once = (
        sl.expand(trace, sl.Mesh(dp=2), batch=batch, stored=sl.fsdp("dp"), regather=regather).program.rewrite(*passes)
        for regather in (True, False)
    )
    assert kept_of_parameters(again) == []
    assert kept_of_parameters(once) != []


@pytest.mark.parametrize("stored", ["o i/dp", "o i", "o/dp i"])
def test_nothing_is_kept_in_whatever_way_a_parameter_is_brought_to_its_layout_in_use(stored: str) -> None:
    """Exchanged, cut or gathered: what the backward reads, it brings there itself."""
    how = {"params": {"down.weight": "o/dp i"}, "stored": {"down.weight": stored}, "batch": "dp"}
    expansion = proved(Mlp(), torch.randn(4, 8), mesh=sl.Mesh(dp=2), **how)
    assert kept_of_parameters(expansion.program.rewrite(*PASSES)) == []


class Keeping(torch.autograd.Function):
    """Saves a product and a sine that its forward does not need."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(w.sin(), w.cos() * x)
        return x * w

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sine, product = ctx.saved_tensors
        return grad * sine, (grad * product).sum(0)


class Casting(nn.Module):
    """Reads one parameter through a cast, parts, a concatenation and a function of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.w.double().float().chunk(2)
        return Keeping.apply(x.tanh() @ torch.cat([second, first]).t(), self.v)


def test_what_the_backward_makes_of_a_parameter_it_makes_of_what_it_gathers() -> None:
    expansion = sl.spmd_expand(
        Casting(), torch.randn(4, 6, requires_grad=True), mesh=sl.Mesh(dp=2), batch="dp", stored=sl.fsdp("dp")
    )
    program = expansion.program
    assert [name for name in (step.name for step in expansion.steps) if "gather:" in name] == [
        "gather:w",
        "gather:v",
        "regather:v",
        "regather:w",
    ]
    assert kept_of_parameters(program) == kept_of_parameters(program.rewrite(*PASSES)) == []
    program.verify().raise_if_wrong()


class Autocast(nn.Module):
    """Two layers in a smaller dtype, with a norm between them that reads its parameters as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(6, 10), nn.LayerNorm(10), nn.Linear(10, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.down(self.norm(F.gelu(self.up(x)))).float()


@pytest.mark.parametrize("mesh", [sl.Mesh(dp=4), sl.Mesh(dp=2, tp=2)], ids=str)
def test_what_is_read_in_a_smaller_dtype_is_cast_before_it_is_gathered(mesh: sl.Mesh) -> None:
    rules = COLUMNS_THEN_ROWS if "tp" in mesh.axes else {}
    how = {"mesh": mesh, "params": rules, "batch": "dp", "stored": sl.fsdp("dp"), "loss": weighted}
    x = torch.randn(8, 6, requires_grad=True)
    expansion = proved(Autocast(), x, **how)
    assert kept_of_parameters(expansion.program.rewrite(*PASSES)) == []
    gathered = {step.name: str(step.outputs[0])[:4] for step in expansion.steps if step.op == "gather"}
    assert {name.rpartition(".")[0] for name, dtype in gathered.items() if dtype == "bf16"} == {
        "gather:up",
        "gather:down",
        "regather:up",
        "regather:down",
    }
    assert gathered["gather:norm.weight"] == gathered["regather:norm.weight"] == "f32["
    assert "to gather 6 parameters" in repr(expansion)
    once = proved(Autocast(), x, regather=False, **how)
    assert str(once.layout("gather:down.weight"))[:4] == "bf16"
    assert str(once.layout("grad(down.weight)"))[:4] == "f32["


def test_what_is_read_in_two_dtypes_is_gathered_in_its_own() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(6, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.tanh() @ self.w) * (x.bfloat16() @ self.w.bfloat16()).float()

    expansion = proved(Both(), torch.randn(4, 6), mesh=sl.Mesh(dp=2), batch="dp", stored=sl.fsdp("dp"))
    assert str(expansion.layout("gather:w")) == "f32[6, 6]"


# --- rules ---


def test_rules_in_front_win_and_none_lets_rest_as_used() -> None:
    stored = {"up.*": None, "down.weight": "o i/dp"} | sl.fsdp("dp")
    how = {"params": {"up.weight": "o/tp i"}, "stored": stored, "batch": "dp"}
    expansion = proved(Mlp(), torch.randn(4, 8), mesh=sl.Mesh(dp=2, tp=2), **how)
    assert [str(expansion.layout(name)) for name in ("up.weight", "up.bias", "down.weight", "down.bias")] == [
        "f32[16/tp, 8]",
        "f32[16]",
        "f32[8, 16/dp]",
        "f32[8/dp]",
    ]
    assert [name for name in expansion.in_use if name.startswith("up")] == []


def test_placements_and_styles_say_how_parameters_rest_too() -> None:
    stored = {"down.weight": [Replicate(), Shard(1)]} | sl.colwise("up", axis="tp")
    expansion = proved(Mlp(), torch.randn(4, 8), mesh=sl.Mesh(dp=2, tp=2), batch="dp", stored=stored)
    assert [str(expansion.layout(name)) for name in ("up.weight", "down.weight")] == ["f32[16/tp, 8]", "f32[8, 16/tp]"]


def test_buffers_rest_divided_where_a_rule_names_them() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    whole = proved(model, torch.randn(8, 6), mesh=sl.Mesh(dp=2), batch="dp", stored=sl.fsdp("dp"))
    assert str(whole.layout("1.running_mean")) == "f32[4]"
    stored = {"1.running_*": "c/dp"}
    divided = proved(model, torch.randn(8, 6), mesh=sl.Mesh(dp=2), batch="dp", stored=stored)
    assert [str(divided.layout(name)) for name in ("1.running_mean", "new(1.running_mean)")] == ["f32[4/dp]"] * 2


def test_what_is_returned_as_it_came_lies_as_it_is_used() -> None:
    class Returning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(6, 4))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x @ self.w.t(), self.w

    expansion = proved(Returning(), torch.randn(4, 4), mesh=sl.Mesh(dp=2), batch="dp", stored=sl.fsdp("dp"))
    assert [str(layout) for layout in expansion.output_layouts] == ["f32[4/dp, 6]", "f32[6, 4]", "f32[6/dp, 4]"]


def test_a_forward_alone_gathers_once() -> None:
    traced = sl.trace(Mlp(), torch.randn(8, 8), backward=False)
    expansion = sl.expand(traced, sl.Mesh(dp=4), batch="dp", stored=sl.fsdp("dp"))
    expansion.program.verify().raise_if_wrong()
    assert kinds(expansion.collectives) == {("all_gather", "forward"): 6}
    assert expansion.traced is traced


def test_the_trace_is_left_as_it_was() -> None:
    traced = sl.trace(Mlp(), torch.randn(8, 8), loss=weighted)
    before = str(traced.graph_module.code)
    with_rules = sl.expand(traced, sl.Mesh(dp=2), batch="dp", stored=sl.fsdp("dp"))
    assert str(traced.graph_module.code) == before
    assert [node.name for node in with_rules.traced.op_nodes if node.name.endswith("_anew")] == ["t_1_anew"]
    assert sl.expand(traced, sl.Mesh(dp=2), batch="dp").traced is traced
    assert sl.expand(traced, sl.Mesh(dp=2), batch="dp", stored=sl.fsdp("dp"), regather=False).traced is traced


MISTAKES = {
    "a pattern that matches nothing": (
        {"stored": {"**.wieght": "o/dp i"}},
        "'**.wieght' matches no parameter and no buffer\n"
        "  argument: stored={'**.wieght': 'o/dp i'}\n  try: did you mean 'weight'?",
    ),
    "a pattern that is shadowed": (
        {"stored": sl.fsdp("dp") | {"up.weight": "o/dp i"}},
        "'up.weight' has no effect: '**' matches the same names first\n"
        "  argument: stored={'up.weight': 'o/dp i'}\n  try: put the more specific pattern first",
    ),
    "an axis that is not there": (
        {"stored": sl.fsdp("dq")},
        "Mesh(dp=2, tp=2) has no axis 'dq'\n  argument: stored={'**': fsdp('dq')}\n  try: did you mean 'dp'?",
    ),
    "a reduction at rest": (
        {"stored": {"up.weight": "o i {sum: dp}"}},
        "'up.weight' cannot rest as a pending reduction\n  argument: stored\n"
        "  layout: up.weight: f32[16, 8]{sum: dp}\n  try: divide or replicate it",
    ),
    "in the place of params": (
        {"params": sl.fsdp("dp")},
        "fsdp says how parameters rest\n  argument: params={'**': fsdp('dp')}\n  try: stored=fsdp('dp')",
    ),
    "a rule for the whole": (
        {"stored": "o/dp i"},
        'stored cannot be a str\n  argument: stored\n  try: a mapping of names to placements: stored={"...": "o/tp i"}',
    ),
    "a word where a choice is": (
        {"stored": sl.fsdp("dp"), "regather": "backward"},
        "regather cannot be a str\n  argument: regather\n  try: True or False",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(mistake: str) -> None:
    how, text = MISTAKES[mistake]
    with pytest.raises(sl.SpmdLabError) as error:
        sl.expand(sl.trace(Mlp(), torch.randn(8, 8)), sl.Mesh(dp=2, tp=2), **how)
    assert str(error.value) == text


def test_fsdp_names_axes() -> None:
    with pytest.raises(PatternError, match="fsdp names no axis"):
        sl.fsdp()
    assert repr(sl.fsdp("dp", "tp")) == "{'**': fsdp('dp', 'tp')}"


# --- passes ---


def gpt(**how: Any) -> sl.Program:
    torch.manual_seed(0)
    tokens = torch.arange(32).reshape(4, 8).mul(7) % 64
    return sl.expand(sl.trace(GPT(2, 32, 4, 64, 8), tokens), batch="dp", **{"stored": sl.fsdp("dp"), **how}).program


def gathers(program: sl.Program) -> Counter[str]:
    return Counter(each.step for each in program.collectives if "gather:" in each.step)


@pytest.mark.parametrize("mesh", [sl.Mesh(dp=2), sl.Mesh(dp=3, tp=3)], ids=str)
def test_passes_gather_as_often_and_in_the_same_order_on_every_rank(mesh: sl.Mesh) -> None:
    program = gpt(mesh=mesh, params=MEGATRON if "tp" in mesh.axes else {})
    assert gathers(program.rewrite("lean", "share", "overlap")) == gathers(program)
    rewritten = program.rewrite(*PASSES)
    sent = [
        [(str(node.target), str(node.args[-1])) for node in rewritten.for_rank(rank).graph.nodes if is_sent(node)]
        for rank in range(mesh.size)
    ]
    assert all(each == sent[0] for each in sent)


@pytest.mark.parametrize("mesh", [sl.Mesh(dp=2), sl.Mesh(dp=2, tp=2)], ids=str)
def test_small_parameters_travel_together(mesh: sl.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them in one message where a group holds them, else in some; along any dim."""
    stored = {"**.up.weight": "o i/dp"} | sl.fsdp("dp")
    program = gpt(mesh=mesh, params=MEGATRON if "tp" in mesh.axes else {}, stored=stored)
    counts = []
    for at_once in (1 << 20, 1 << 14):
        monkeypatch.setattr(gathers_of_groups, "AT_ONCE", at_once)
        joined = program.rewrite("overlap", "bucket")
        joined.verify().raise_if_wrong()
        for kind in ("all_gather", "reduce_scatter"):
            before, after = (found.collectives.where(kind=kind, axis="dp") for found in (program, joined))
            assert after.total("payload_bytes") == before.total("payload_bytes")
        counts.append(gathers(joined).total())
    assert counts[0] <= 2 * mesh.ndim < counts[1] < 0.6 * gathers(program).total(), counts


def is_sent(node: fx.Node) -> bool:
    return any(user.target is torch.ops._c10d_functional.wait_tensor.default for user in node.users)


def most_held(program: sl.Program) -> tuple[int, int]:
    """Bytes of gathers that are sent and not read yet, and of gradients that are sent and not waited for, at most."""
    sizes = {
        step.name: step.outputs[0].nbytes(step.outputs[0].global_shape)
        for step in program.expansion.steps
        if step.op == "gather"
    }
    ahead, behind, most = dict[str, int](), dict[fx.Node, int](), [0, 0]
    for node in program.graph_module.graph.nodes:
        record, step = node.meta.get("spmd_collective"), node.meta.get("spmd_step", "")
        for read in node.all_input_nodes:
            ahead.pop(read.meta.get("spmd_value", ""), None)
            behind.pop(read, None)
        if record is not None and step in sizes:
            ahead[step] = sizes[step]
        elif record is not None and record.kind == "reduce_scatter":
            behind[node] = record.payload_bytes
        most = [max(most[0], sum(ahead.values())), max(most[1], sum(behind.values()))]
    return most[0], most[1]


def test_gathers_run_ahead_by_one_parameter_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathers_of_groups, "AT_ONCE", 1)
    monkeypatch.setattr(overlap, "AT_ONCE", 1)
    program = gpt(mesh=sl.Mesh(dp=2))
    rewritten = program.rewrite("overlap")
    sizes = [each.payload_bytes for each in program.collectives.where(kind="all_gather")]
    ahead, behind = most_held(rewritten)
    assert ahead <= sum(sorted(sizes)[-2:])  # one that is read next, and the one that is sent before it is
    assert max(sizes) <= behind <= 2 * max(sizes)
    nodes = list(rewritten.graph_module.graph.nodes)
    sent = {node.meta["spmd_step"]: index for index, node in enumerate(nodes) if "spmd_collective" in node.meta}
    first_read = {step: min(map(nodes.index, wait.users)) for step, wait in waits(nodes).items() if wait.users}
    overlapped = [step for step in first_read if sent[step] + 3 < first_read[step]]
    assert len(overlapped) > len(first_read) / 3
    backward = next(index for index, node in enumerate(nodes) if node.meta.get("phase") == "backward")
    assert all(sent[step] >= backward for step in sent if step.startswith("regather:"))


def waits(nodes: list[fx.Node]) -> dict[str, fx.Node]:
    return {node.meta["spmd_value"]: node for node in nodes if "gather:" in node.meta.get("spmd_value", "")}


def test_a_saved_program_gathers_too(tmp_path: Path) -> None:
    program = gpt(mesh=sl.Mesh(dp=2)).rewrite(*PASSES)
    saved = sl.load(program.save(tmp_path / "gpt.spmd"))
    assert [port.layout for port in saved.inputs] == list(program.input_layouts)
    assert saved.for_rank(1).code == program.for_rank(1).code


# --- seen ---


def test_gathers_are_counted_and_filmed() -> None:
    expansion = sl.spmd_expand(Mlp(), torch.randn(8, 8), mesh=sl.Mesh(dp=4), batch="dp", stored=sl.fsdp("dp"))
    assert "9 to gather 6 parameters and 7 to resolve 7 pending gradients" in repr(expansion)
    operators = sum(step.op.startswith("aten.") for step in expansion.steps)
    assert f"{operators} operators, 16 collectives: 0 in steps" in repr(expansion)
    assert "f32[16/dp, 8]  f32[16, 8] ▸ [16, 8]  all_gather(dp) 512 B" in repr(expansion["gather:up.weight"])
    assert "gather:up.weight" in [step.name for step in expansion["up"]]
    assert "# f32[16, 8] ▸ [16, 8]" in repr(expansion.program)
