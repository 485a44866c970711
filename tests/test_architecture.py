"""The house stands as its plan says, and every rule of the plan can be broken."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest

import spmd_lab
from tests.architecture import FLOORS, PACKAGE, module_level_imports, violations

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / PACKAGE).rglob("*.py"))
LONG, TOO_LONG = 300, 400


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def broken(module: str, source: str) -> str:
    return "\n".join(violations(module, textwrap.dedent(source)))


# --- the house as it stands ---------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_a_module_keeps_the_rules(path: Path) -> None:
    assert not violations(module_name(path), path.read_text())


def test_every_part_is_known_and_is_there() -> None:
    parts = {path.relative_to(ROOT / PACKAGE).parts[0].removesuffix(".py") for path in FILES}
    assert parts <= {part for floor in FLOORS for part in floor}


def test_every_folder_is_a_package() -> None:
    assert not [path.parent for path in FILES if not (path.parent / "__init__.py").is_file()]


def test_no_module_is_a_drawer() -> None:
    drawers = re.compile(r"(.*_)?(utils?|helpers?|misc|common)(_.*)?\Z")
    assert not [path for path in FILES if drawers.match(path.stem) or drawers.match(path.parent.name)]
    assert drawers.match("utils")
    assert drawers.match("graph_utils")


def test_files_are_short() -> None:
    lengths = {module_name(path): len(path.read_text().splitlines()) for path in FILES}
    assert not {name: lines for name, lines in lengths.items() if lines > TOO_LONG}
    long = {name: lines for name, lines in lengths.items() if lines > LONG}
    if long:
        warnings.warn(f"files over {LONG} lines: {long}", stacklevel=1)


def test_modules_import_one_another_in_no_circle() -> None:
    assert not circles({module_name(path).removesuffix(".__init__"): path.read_text() for path in FILES})


# --- each rule can be broken --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "source", "what"),
    [
        ("spmd_lab.layout", "from spmd_lab.expand.values import Step", "imports upward: layout -> spmd_lab.expand"),
        ("spmd_lab.layout", "import spmd_lab.trace.values", "imports upward"),
        ("spmd_lab.layout", "from spmd_lab import Mesh", "imports upward"),
        ("spmd_lab.layout", "from spmd_lab import rebuild", "imports upward: layout -> spmd_lab.rebuild"),
        ("spmd_lab.rules.losses", "from spmd_lab.trace import trace", "imports upward"),
        ("spmd_lab.show.html", "from spmd_lab.records import record", "imports upward"),
        ("spmd_lab.prove.verify", "from spmd_lab.run import Ranks", "imports upward"),
        ("spmd_lab.jupyter.magic", "from spmd_lab.__main__ import main", "imports upward"),
        ("spmd_lab.utils", "", "'utils' stands on no floor"),
        ("spmd_lab.layout", "import IPython.display", "only jupyter may import IPython.display"),
        ("spmd_lab.show.html", "if TYPE_CHECKING:\n    import ipywidgets", "only jupyter may import ipywidgets"),
        ("spmd_lab.show.html", "import torch", "show knows records alone"),
        ("spmd_lab.show.html", "from spmd_lab.layout import Layout", "show knows records alone"),
        ("spmd_lab.show.html", "if TYPE_CHECKING:\n    from spmd_lab.mesh import Mesh", "show knows records alone"),
        ("spmd_lab.prove.verify", "from spmd_lab.expand.values import Step", "prove must not rest on"),
        ("spmd_lab.prove.verify", "def f():\n    import spmd_lab.rules", "prove must not rest on"),
        ("spmd_lab.torch_internals.groups", "from spmd_lab.mesh import Mesh", "torch_internals knows torch alone"),
        ("spmd_lab.torch_internals.groups", "import networkx", "torch_internals knows torch alone"),
        ("spmd_lab.trace.export", "import torch._functorch.aot_autograd", "private name of torch: torch._functorch"),
        ("spmd_lab.trace.export", "from torch import _C", "private name of torch: torch._C"),
        ("spmd_lab.trace.export", "from torch.utils import _pytree as pytree", "torch.utils._pytree"),
        ("spmd_lab.trace.export", "from torch.testing._internal.common_utils import run_tests", "testing._internal"),
        ("spmd_lab.trace.export", "if TYPE_CHECKING:\n    from torch._ops import OpOverload", "torch._ops.OpOverload"),
        ("spmd_lab.trace.export", "import torch\ntorch._dynamo.reset()", "torch._dynamo.reset"),
        ("spmd_lab.trace.export", "import torch as t\nt.utils._pytree.tree_map(f, x)", "torch.utils._pytree"),
        (
            "spmd_lab.trace.export",
            "from torch.distributed import tensor as dt\ndt._dtensor_spec.TensorMeta",
            "torch.distributed.tensor._dtensor_spec.TensorMeta",
        ),
        (
            "spmd_lab.expand.steps",
            "from torch.distributed.tensor import DTensor\nDTensor._op_dispatcher.sharding_propagator",
            "torch.distributed.tensor.DTensor._op_dispatcher",
        ),
        ("spmd_lab.expand.steps", "import torch\nops = torch.ops\nops._private.f.default(x)", "torch.ops._private"),
        ("spmd_lab.expand.steps", "import torch\ngetattr(torch, '_C')", "private name of torch: torch._C"),
        ("spmd_lab.expand.steps", "importlib.import_module('torch._inductor')", "torch._inductor"),
    ],
)
def test_a_breach_is_found(module: str, source: str, what: str) -> None:
    assert what in broken(module, source)


@pytest.mark.parametrize(
    "body",
    [
        "from spmd_lab.rebuild import rebuild\n    program = rebuild(self)\n    return program",
        "from spmd_lab.rebuild import rebuild, Program\n    return rebuild(self)",
        "from spmd_lab.rebuild import rebuild\n    return rebuild",
        "from spmd_lab.rebuild import rebuild\n    if self.done:\n        return rebuild(self)",
    ],
)
def test_a_late_import_that_does_more_than_delegate_is_found(body: str) -> None:
    assert "imports upward" in broken("spmd_lab.expand.values", f"def program(self):\n    {body}\n")


@pytest.mark.parametrize("docstring", ["", '"""What it becomes."""\n    '])
def test_the_one_form_of_delegation_is_allowed(docstring: str) -> None:
    source = f"def program(self):\n    {docstring}from spmd_lab.rebuild import rebuild\n    return rebuild(self)\n"
    assert not broken("spmd_lab.expand.values", source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("spmd_lab.expand.values", "if TYPE_CHECKING:\n    from spmd_lab.rebuild import Program"),
        ("spmd_lab.prove.verify", "if TYPE_CHECKING:\n    from spmd_lab.expand.values import Step"),
        ("spmd_lab.prove.verify", "from spmd_lab.layout import Layout"),
        ("spmd_lab.layout", "from spmd_lab.mesh import Mesh"),
        ("spmd_lab.rules.losses", "import torch\ntorch.ops.aten._softmax.default"),
        ("spmd_lab.expand.steps", "import torch\nc10d = torch.ops._c10d_functional\nc10d.wait_tensor.default"),
        ("spmd_lab.expand.steps", "import torch\ntorch.ops._dtensor.shard_dim_alltoall.default"),
        ("spmd_lab.expand.steps", "from torch import fx\nfx.__name__"),
        ("spmd_lab.torch_internals.export", "from torch._functorch import aot_autograd\nimport os"),
        ("spmd_lab.records.steps", "from spmd_lab.show.part_records import LayoutRecord"),
        ("spmd_lab.jupyter.magic", "import IPython\nimport spmd_lab as sl"),
    ],
)
def test_what_is_in_order_passes(module: str, source: str) -> None:
    assert not broken(module, source)


def test_a_circle_is_found() -> None:
    sources = {
        "spmd_lab.mesh": "from spmd_lab.layout import Layout",
        "spmd_lab.layout": "import torch\nfrom spmd_lab.errors import LayoutError\nfrom spmd_lab import mesh",
        "spmd_lab.errors": "def late():\n    from spmd_lab.mesh import Mesh",
    }
    assert circles(sources) == ["spmd_lab.layout", "spmd_lab.mesh"]


# --- what an import brings along ----------------------------------------------------------------

HEAVY = ("IPython", "ipywidgets", "matplotlib", "networkx", "pandas", "pygraphviz", "tqdm", "transformers")


def libraries_loaded_by(statement: str) -> set[str]:
    """Which of the heavy libraries a statement loads beyond what ``import torch`` does."""
    code = (
        f"import json, sys, torch; before = set(sys.modules); {statement}; "
        f"print(json.dumps([name for name in {HEAVY!r} if name in set(sys.modules) - before]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_the_package_is_light() -> None:
    assert not libraries_loaded_by("import spmd_lab")


def test_the_package_is_quick() -> None:
    """What takes long to import is what torch itself puts off; it is put off here too."""
    code = "import sys, torch; before = set(sys.modules); import spmd_lab; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not [name for name in done.stdout.split() if name.startswith(("torch", "sympy"))]


def test_every_public_name_is_there() -> None:
    assert set(spmd_lab.__all__) <= set(dir(spmd_lab))
    assert all(getattr(spmd_lab, name) is not None for name in spmd_lab.__all__)
    with pytest.raises(AttributeError, match="module 'spmd_lab' has no attribute 'shard'"):
        spmd_lab.shard  # noqa: B018


@pytest.mark.parametrize("folder", ["trace", "expand", "rebuild", "spmd_expand"])
def test_a_verb_is_not_hidden_by_the_folder_of_its_name(folder: str) -> None:
    code = f"import spmd_lab.{folder}, spmd_lab; assert spmd_lab.{folder}.__name__ == {folder!r}; spmd_lab.{folder}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_heavy_import_would_be_seen() -> None:
    assert libraries_loaded_by("import matplotlib") == {"matplotlib"}


# --- circles ------------------------------------------------------------------------------------


def circles(sources: dict[str, str]) -> list[str]:
    """The modules that lead back to themselves by the imports that run when they are loaded."""
    imported = {
        name: {_nearest(target, sources) for target in module_level_imports(text)} for name, text in sources.items()
    }
    return sorted(name for name in sources if name in _reached(name, imported))


def _nearest(target: str, known: dict[str, str]) -> str | None:
    """The module that an import names: itself, or the one that holds the name."""
    return target if target in known else target.rpartition(".")[0] if target.rpartition(".")[0] in known else None


def _reached(start: str, imported: dict[str, set[str | None]]) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = {name for name in imported[waiting.pop()] if name is not None} - seen
        seen |= new
        waiting.extend(new)
    return seen
