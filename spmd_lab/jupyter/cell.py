"""A cell of plain tensor code as a function: the names that it reads go in, the names that it assigns come out."""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass
from symtable import symtable
from typing import TYPE_CHECKING, Any

import torch

from spmd_lab.jupyter.command_line import LineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from symtable import Symbol, SymbolTable

__all__ = ["CellProgram", "cell_program"]

_SCOPES = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
_EXITS = (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal)
_BOUND = "_spmd_lab_bound"
_ALL_BOUND = ast.Call(ast.Name(_BOUND, ast.Load()), [], [])
"""What has a value at the end of a cell: not each name that is assigned somewhere in it has one."""


@dataclass(frozen=True)
class CellProgram:
    """A cell, ready to be traced.

    Parameters
    ----------
    function : callable
        Takes the tensors that the cell reads, by name, and returns those that it assigns, by name.
    inputs : dict
        The tensors that it reads.
    values : dict
        What the cell assigns on one device, tensors or not.
    """

    function: Callable[..., dict[str, torch.Tensor]]
    inputs: dict[str, torch.Tensor]
    values: dict[str, Any]


def cell_program(cell: str, file: str, names: dict[str, Any]) -> CellProgram:
    """Run a cell on one device, and make a function of it.

    Parameters
    ----------
    cell : str
        The code.
    file : str
        What to call its file, so that lines point into the cell.
    names : dict
        The variables of the notebook.

    Raises
    ------
    LineError
        If the cell cannot be read, returns or imports with a star, reads what nothing defines, or assigns no tensor.
    """
    try:
        tree = ast.parse(cell, file)
    except SyntaxError as error:
        raise LineError(f"line {error.lineno} of the cell is no Python: {error.msg}") from None
    read, assigned = _names_of(tree)
    inputs = {name: names[name] for name in read if isinstance(names.get(name), torch.Tensor)}
    unknown = [name for name in read if name not in names and name not in assigned and not hasattr(builtins, name)]
    if unknown:
        raise LineError(f"the cell reads {', '.join(unknown)}, which nothing defines")
    bound = _function(tree, file, list(inputs), _ALL_BOUND, names)(**inputs)
    values = {name: bound[name] for name in assigned if name in bound}
    tensors = [name for name, value in values.items() if isinstance(value, torch.Tensor)]
    if not tensors:
        raise LineError("the cell assigns no tensor, as in y = x @ w")
    returned = ast.Dict([ast.Constant(name) for name in tensors], [ast.Name(name, ast.Load()) for name in tensors])
    return CellProgram(_function(tree, file, list(inputs), returned, names), inputs, values)


def _function(
    tree: ast.Module, file: str, inputs: Sequence[str], returned: ast.expr, names: dict[str, Any]
) -> Callable[..., dict[str, Any]]:
    """``def cell(x, w): ...; return {"y": y}``, with the notebook's variables as its globals."""
    ending = ast.copy_location(ast.Return(returned), tree.body[-1])
    define = ast.copy_location(_function_of(inputs, [*tree.body, ending]), tree.body[0])
    module = ast.fix_missing_locations(ast.Module([define], []))
    known = {**names, _BOUND: locals}
    try:
        exec(compile(module, file, "exec"), known)
    except SyntaxError as error:
        raise LineError(f"line {error.lineno} of the cell: {error.msg}") from None
    found: Callable[..., dict[str, Any]] = known["cell"]
    return found


def _names_of(tree: ast.Module) -> tuple[list[str], list[str]]:
    """The names that the statements of a cell read before they assign them, and those that they assign, in order."""
    if not tree.body:
        raise LineError("the cell is empty")
    read: dict[str, None] = {}
    assigned: dict[str, None] = {}
    for statement in tree.body:
        _refuse_exits(statement)
        stores = list(dict.fromkeys(name for node in _in_own_scope(statement) for name in _bound_by(node)))
        read.update(dict.fromkeys(name for name in _read_by(statement, stores) if name not in assigned))
        assigned.update(dict.fromkeys(stores))
    return list(read), list(assigned)


def _in_own_scope(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all within it, but for the insides of functions, classes and comprehensions."""
    yield node
    if not isinstance(node, _SCOPES):
        for child in ast.iter_child_nodes(node):
            yield from _in_own_scope(child)


def _refuse_exits(statement: ast.stmt) -> None:
    for node in _in_own_scope(statement):
        what = type(node).__name__.lower() if isinstance(node, _EXITS) else ""
        if isinstance(node, ast.ImportFrom) and any(each.name == "*" for each in node.names):
            what = "import *"
        if what:
            raise LineError(f"line {getattr(node, 'lineno', 1)} of the cell: {what} has no meaning here")


def _bound_by(node: ast.AST) -> Iterator[str]:
    """The names that a node gives a value where it stands."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name
        case ast.alias(name=name, asname=other):
            yield other or name.partition(".")[0]


def _read_by(statement: ast.stmt, stores: Sequence[str]) -> list[str]:
    """The names that a statement looks up around it, those that it changes in place among them."""
    module = ast.Module([_function_of([], [statement])], [])
    table = symtable(ast.unparse(ast.fix_missing_locations(module)), "<cell>", "exec").get_children()[0]
    own = [each.get_name() for each in table.get_symbols() if each.is_referenced()]
    found = [name for name in own if name in stores or table.lookup(name).is_global()]
    found += [each.get_name() for inner in _within(table) for each in inner.get_symbols() if _is_from_outside(each)]
    changed = (node.target for node in _in_own_scope(statement) if isinstance(node, ast.AugAssign))
    return found + [target.id for target in changed if isinstance(target, ast.Name)]


def _within(table: SymbolTable) -> Iterator[SymbolTable]:
    for inner in table.get_children():
        yield inner
        yield from _within(inner)


def _is_from_outside(symbol: Symbol) -> bool:
    return symbol.is_referenced() and (symbol.is_global() or symbol.is_free())


def _function_of(arguments: Sequence[str], body: Sequence[ast.stmt]) -> ast.FunctionDef:
    """``def cell(x, w): ...``."""
    define = ast.parse(f"def cell({', '.join(arguments)}): pass").body[0]
    assert isinstance(define, ast.FunctionDef)
    define.body = list(body)
    return define
