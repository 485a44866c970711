"""A cell of plain tensor code as a function: the names that it reads go in, the names that it assigns come out."""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from spmd_lab.jupyter.command_line import LineError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CellProgram", "cell_program"]


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
        If the cell cannot be read, returns or imports with a star, or assigns no tensor.
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
    values = _function(tree, file, list(inputs), assigned, names)(**inputs)
    tensors = [name for name in assigned if isinstance(values.get(name), torch.Tensor)]
    if not tensors:
        raise LineError("the cell assigns no tensor, as in y = x @ w")
    return CellProgram(_function(tree, file, list(inputs), tensors, names), inputs, values)


def _function(
    tree: ast.Module, file: str, inputs: list[str], results: list[str], names: dict[str, Any]
) -> Callable[..., dict[str, Any]]:
    """``def cell(x, w): ...; return {"y": y}``, with the notebook's variables as its globals."""
    last = tree.body[-1]
    returned = ast.Return(
        ast.Dict([ast.Constant(name) for name in results], [ast.Name(name, ast.Load()) for name in results])
    )
    define = ast.parse(f"def cell({', '.join(inputs)}): pass").body[0]
    assert isinstance(define, ast.FunctionDef)
    define.body = [*tree.body, ast.copy_location(returned, last)]
    module = ast.fix_missing_locations(ast.Module([ast.copy_location(define, tree.body[0])], []))
    known = dict(names)
    exec(compile(module, file, "exec"), known)
    found: Callable[..., dict[str, Any]] = known["cell"]
    return found


def _names_of(tree: ast.Module) -> tuple[list[str], list[str]]:
    """The names that the statements of a cell read before they assign them, and those that they assign, in order."""
    if not tree.body:
        raise LineError("the cell is empty")
    read: dict[str, None] = {}
    assigned: dict[str, None] = {}
    for statement in tree.body:
        loads, stores = _of_statement(statement)
        read.update(dict.fromkeys(name for name in loads if name not in assigned))
        assigned.update(dict.fromkeys(stores))
    return list(read), list(assigned)


def _of_statement(statement: ast.stmt) -> tuple[list[str], list[str]]:
    for node in ast.walk(statement):
        if isinstance(node, (ast.Return, ast.Global, ast.Nonlocal)) and not isinstance(statement, ast.FunctionDef):
            raise LineError(f"line {node.lineno} of the cell: {type(node).__name__.lower()} has no meaning here")
    inner = {
        each.arg if isinstance(each, ast.arg) else each.id
        for scope in ast.walk(statement)
        if isinstance(scope, (ast.Lambda, ast.FunctionDef, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp))
        for each in ast.walk(scope)
        if isinstance(each, ast.arg) or (isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
    }
    found = [node for node in ast.walk(statement) if isinstance(node, ast.Name) and node.id not in inner]
    loads = [node.id for node in found if isinstance(node.ctx, ast.Load)]
    changed = [node.target for node in ast.walk(statement) if isinstance(node, ast.AugAssign)]
    loads += [target.id for target in changed if isinstance(target, ast.Name)]
    stores = [node.id for node in found if isinstance(node.ctx, ast.Store)]
    return loads, stores
