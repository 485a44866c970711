"""The rules of the house, read from source text: who may import whom, and who may name what.

`violations` takes the name of a module and its source, so that a test can feed it a bad one.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass

PACKAGE = "spmd_lab"

FLOORS: tuple[tuple[str, ...], ...] = (
    ("torch_internals",),
    ("shown",),
    ("collectives", "drawn", "errors", "mesh", "elements", "layout", "notation", "parsing", "progress"),
    ("local_graph", "binding", "files", "streams"),
    ("without_data",),
    ("rules",),
    ("trace",),
    ("expand",),
    ("spmd_expand",),
    ("splicing",),
    ("rebuild",),
    ("explain",),
    ("prove", "rewrite", "saving"),
    ("run", "teach"),
    ("show",),
    ("records",),
    ("__init__",),
    ("jupyter",),
    ("demo",),
    ("__main__",),
)
"""From the ground up. A folder may import what stands on lower floors, and itself."""

SHARED_FLOOR = frozenset({"errors", "mesh", "elements", "layout", "notation", "parsing"})
"""The values that everything speaks in may import one another."""

OPERATOR_NAMESPACES = ("torch.ops._c10d_functional", "torch.ops._dtensor")
"""Private names of torch that are the only spelling of their operators."""

NOTEBOOK_LIBRARIES = frozenset({"IPython", "ipywidgets"})


@dataclass(frozen=True)
class Import:
    """One imported module or name, and where the import stands."""

    target: str
    line: int
    for_types: bool
    delegates: bool

    @property
    def library(self) -> str:
        """The outermost package."""
        return self.target.partition(".")[0]

    @property
    def part(self) -> str:
        """The part of this package that it reaches: a folder or a module of the top level."""
        inside = self.target.split(".")[1:]
        return inside[0] if inside and inside[0] in _FLOOR_OF else "__init__"


_FLOOR_OF = {part: floor for floor, parts in enumerate(FLOORS) for part in parts}


def violations(module: str, source: str) -> list[str]:
    """Every breach of the rules of the house in one module."""
    tree = ast.parse(source)
    part = _part_of(module)
    if part not in _FLOOR_OF:
        return [f"{module}: {part!r} stands on no floor"]
    imports = imports_of(tree)
    found = [
        *_upward(part, imports),
        *_private_torch(part, tree),
        *_foreign_to_internals(part, imports),
        *_foreign_to_show(part, imports),
        *_foreign_to_prove(part, imports),
        *_notebook_libraries(part, imports),
    ]
    return [f"{module}:{line}: {what}" for line, what in sorted(found)]


def imports_of(tree: ast.Module) -> list[Import]:
    """Every import of a module, wherever it stands."""
    for_types = {id(inner) for node in ast.walk(tree) if _is_type_checking(node) for inner in _walk_all(node.body)}
    delegates = {id(node.body[-2]) for node in ast.walk(tree) if is_delegation(node)}
    return [
        Import(target, node.lineno, id(node) in for_types, id(node) in delegates)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for target in _targets(node)
    ]


def is_delegation(node: ast.AST) -> bool:
    """The one form in which a value may reach up: a function that is one late import of one name and one call."""
    if not isinstance(node, ast.FunctionDef):
        return False
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if len(body) != 2:
        return False
    first, last = body
    one_import = isinstance(first, (ast.Import, ast.ImportFrom)) and len(first.names) == 1
    return one_import and isinstance(last, (ast.Return, ast.Expr)) and isinstance(last.value, ast.Call)


def module_level_imports(source: str) -> set[str]:
    """The modules that are imported when this one is, apart from those for types."""
    tree = ast.parse(source)
    late = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for inner in ast.walk(node)
    }
    for_types = {id(inner) for node in ast.walk(tree) if _is_type_checking(node) for inner in _walk_all(node.body)}
    return {
        target
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom)) and id(node) not in late | for_types
        for target in _targets(node)
    }


# --- the rules ----------------------------------------------------------------------------------

Found = list[tuple[int, str]]


def _upward(part: str, imports: list[Import]) -> Found:
    return [
        (each.line, f"imports upward: {part} -> {each.target}")
        for each in imports
        if each.library == PACKAGE and not (each.for_types or each.delegates) and not _may_import(part, each.part)
    ]


def _may_import(part: str, other: str) -> bool:
    if part == other or {part, other} <= SHARED_FLOOR:
        return True
    return _FLOOR_OF[other] < _FLOOR_OF[part]


def _private_torch(part: str, tree: ast.Module) -> Found:
    if part == "torch_internals":
        return []
    return [(line, f"private name of torch: {name}") for line, name in _torch_names(tree) if _is_private(name)]


def _foreign_to_internals(part: str, imports: list[Import]) -> Found:
    if part != "torch_internals":
        return []
    return [
        (each.line, f"torch_internals knows torch alone, not {each.target}")
        for each in imports
        if each.library not in sys.stdlib_module_names | {"torch"}
        and not each.target.startswith(f"{PACKAGE}.torch_internals")
    ]


def _foreign_to_show(part: str, imports: list[Import]) -> Found:
    if part != "show":
        return []
    return [
        (each.line, f"show knows records alone, not {each.target}")
        for each in imports
        if each.library == "torch" or (each.library == PACKAGE and each.part not in ("show", "errors", "files"))
    ]


def _foreign_to_prove(part: str, imports: list[Import]) -> Found:
    if part != "prove":
        return []
    return [
        (each.line, f"prove must not rest on what it judges: {each.target}")
        for each in imports
        if each.library == PACKAGE and each.part in ("expand", "rules") and not each.for_types
    ]


def _notebook_libraries(part: str, imports: list[Import]) -> Found:
    if part == "jupyter":
        return []
    return [
        (each.line, f"only jupyter may import {each.target}") for each in imports if each.library in NOTEBOOK_LIBRARIES
    ]


# --- names of torch -----------------------------------------------------------------------------


def _torch_names(tree: ast.Module) -> list[tuple[int, str]]:
    """Every dotted name of torch in a module: imported, reached by attributes, or spelled in a string."""
    bound = _names_bound_to_torch(tree)
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.extend((node.lineno, name) for name in _targets(node) if name.partition(".")[0] == "torch")
        elif isinstance(node, ast.Attribute):
            found.extend((node.lineno, name) for name in [_dotted(node, bound)] if name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.extend((node.lineno, node.value) for _ in [0] if re.fullmatch(r"torch(\.\w+)+", node.value))
        elif isinstance(node, ast.Call):
            found.extend(_by_getattr(node, bound))
    return found


def _names_bound_to_torch(tree: ast.Module) -> dict[str, str]:
    """What each local name of a torch module, class or operator namespace stands for."""
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "torch":
                    bound[alias.asname or "torch"] = alias.name if alias.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            bound.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = _dotted(node.value, bound)
            if name:
                bound[node.targets[0].id] = name
    return bound


def _dotted(node: ast.AST, bound: dict[str, str]) -> str | None:
    """The dotted name that a chain of attributes spells, if it starts at torch."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in bound:
        return None
    return ".".join([bound[node.id], *reversed(parts)])


def _by_getattr(node: ast.Call, bound: dict[str, str]) -> list[tuple[int, str]]:
    if not (isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) >= 2):
        return []
    base, attribute = _dotted(node.args[0], bound), node.args[1]
    known = base is not None and isinstance(attribute, ast.Constant)
    return [(node.lineno, f"{base}.{attribute.value}")] if known else []


def _is_private(name: str) -> bool:
    if any(name == space or name.startswith(space + ".") for space in OPERATOR_NAMESPACES):
        return False
    parts = name.split(".")
    if parts[:2] == ["torch", "ops"]:
        parts = parts[:3]  # aten has operators such as _softmax
    return any(part.startswith("_") and not part.endswith("__") for part in parts)


# --- reading trees ------------------------------------------------------------------------------


def _part_of(module: str) -> str:
    return [*module.split("."), "__init__"][1]


def _targets(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [f"{node.module}.{alias.name}" for alias in node.names]


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _walk_all(nodes: list[ast.stmt]) -> list[ast.AST]:
    return [inner for node in nodes for inner in ast.walk(node)]
