"""The line magic ``%spmd_expand``."""

# The decorators of IPython have no types.
# mypy: disable-error-code="no-untyped-call, untyped-decorator"

from __future__ import annotations

import ast
import linecache
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class, needs_local_scope, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

import spmd_lab as sl
from spmd_lab.jupyter.command_line import LineError, call_of, expression_of, rules_of, separate

if TYPE_CHECKING:
    from argparse import Namespace

__all__ = ["SpmdMagics"]

_FLAGS = frozenset({"--verify"})


@magics_class
class SpmdMagics(Magics):
    """The magics of spmd_lab."""

    @needs_local_scope
    @no_var_expand
    @line_magic
    @magic_arguments()
    @argument("call", nargs="?", help="the program and its example inputs, as a call: model(x, y, mask=m)")
    @argument("--mesh", help="axes and sizes, outermost first: dp=2,tp=4; or a variable that holds a Mesh")
    @argument("--batch", help="the axis that divides dim 0 of the inputs: dp; or with their names: dp,tokens")
    @argument(
        "--params", action="append", help='placements by name: "**.weight=o/dp i, **.bias=o/dp"; or an expression'
    )
    @argument("--inputs", help='placements by name: "x=b/dp d"; or an expression')
    @argument("--pending", choices=["resolve", "keep"], help="what becomes of outputs that are pending")
    @argument("--unsupported", choices=["replicate", "error"], help="what becomes of operators without a rule")
    @argument("--random", choices=["exact", "local"], help="whose random numbers are drawn")
    @argument("--loss", help="the name of the loss function, or an expression: 'lambda out: out.sum()'")
    @argument("--verify", action="store_true", help="run every rank, and show the proof too")
    @argument("-o", dest="output", metavar="NAME", help="the variable to keep the expansion in")
    def spmd_expand(self, line: str, local_ns: dict[str, Any] | None = None) -> sl.Expansion:
        """Expand a call over a mesh, show the expansion and return it.

        The line ::

            %spmd_expand model(x) --mesh dp=4 --batch dp --params "**.weight=o/dp i"

        stands for ::

            spmd_lab.spmd_expand(model, x, mesh=Mesh(dp=4), batch="dp", params={"**.weight": "o/dp i"})

        Options may stand before or after the call. Rules are separated by commas; ``--params`` may be given
        several times, and takes ``colwise("**.q", axis="tp")`` as well. As with any value, a notebook shows the
        expansion if the line is the last one of its cell; ``expansion = %spmd_expand ...`` keeps it instead.
        """
        try:
            return self._expand(line, {**self._variables, **(local_ns or {})})
        except LineError as error:
            raise UsageError(f"%spmd_expand: {error}") from None

    @property
    def _variables(self) -> dict[str, Any]:
        """The variables of the notebook."""
        assert self.shell is not None
        variables: dict[str, Any] = self.shell.user_ns
        return variables

    def _expand(self, line: str, names: dict[str, Any]) -> sl.Expansion:
        options, text = separate(line, _FLAGS)
        magic: Any = self.spmd_expand
        given: Namespace = magic.parser.parse_args(options)
        if given.output is not None and not given.output.isidentifier():
            raise LineError(f"-o {given.output} is no name for a variable")
        fn, args, kwargs = _evaluate_call(call_of(text), names)
        expansion = sl.spmd_expand(fn, *args, kwargs=kwargs, mesh=_mesh(given.mesh, names), **_placing(given, names))
        if given.output is not None:
            self._variables[given.output] = expansion
        if given.verify:
            display(expansion.program.verify())
        return expansion


def _evaluate(tree: ast.expr, names: dict[str, Any]) -> Any:
    """The value of an expression; its errors are the user's, and its text can be quoted by them and by the trace."""
    text = ast.unparse(tree)
    file = f"<{text}>"
    linecache.cache[file] = (len(text), None, [text], file)
    return eval(compile(text, file, "eval"), names)


def _evaluate_call(call: ast.Call, names: dict[str, Any]) -> tuple[Any, list[Any], dict[str, Any]]:
    """What is called, and with what."""
    args: list[Any] = []
    for each in call.args:
        if isinstance(each, ast.Starred):
            args.extend(_evaluate(each.value, names))
        else:
            args.append(_evaluate(each, names))
    kwargs: dict[str, Any] = {}
    for keyword in call.keywords:
        value = _evaluate(keyword.value, names)
        kwargs.update(value if keyword.arg is None else {keyword.arg: value})
    return _evaluate(call.func, names), args, kwargs


def _mesh(text: str | None, names: dict[str, Any]) -> sl.Mesh:
    if text is None:
        raise LineError("the mesh is missing, as in --mesh dp=2,tp=4")
    if isinstance(names.get(text), sl.Mesh):
        found: sl.Mesh = names[text]
        return found
    try:
        return sl.Mesh.parse(text)
    except sl.SpmdLabError as error:
        raise LineError(f"--mesh {text}: {error.what}, as in --mesh dp=2,tp=4") from None


def _placing(given: Namespace, names: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as the arguments of `spmd_lab.spmd_expand`."""
    placing: dict[str, Any] = {}
    if given.batch is not None:
        axis, *inputs = (part.strip() for part in given.batch.split(","))
        placing["batch"] = (axis, *inputs) if inputs else axis
    if given.params is not None:
        placing["params"] = {
            name: layout for text in given.params for name, layout in _placements("--params", text, names).items()
        }
    if given.inputs is not None:
        placing["inputs"] = _placements("--inputs", given.inputs, names)
    for name in ("pending", "unsupported", "random"):
        if getattr(given, name) is not None:
            placing[name] = getattr(given, name)
    if given.loss is not None:
        tree = expression_of(given.loss)
        if tree is None:
            raise LineError(f"--loss {given.loss} is no expression")
        placing["loss"] = _evaluate(tree, names)
    return placing


def _placements(option: str, text: str, names: dict[str, Any]) -> Any:
    """Placements by name: rules, or an expression that gives them."""
    tree = expression_of(text)
    if tree is None:
        return rules_of(text)
    public = {name: getattr(sl, name) for name in sl.__all__}
    try:
        value = _evaluate(tree, {**public, **names})
    except NameError as error:
        raise LineError(f"{option} {text}: {error}; a rule is written as **.weight=o/dp i") from None
    if not isinstance(value, dict | list | tuple) or (option == "--params" and not isinstance(value, dict)):
        raise LineError(f"{option} {text} gives a {type(value).__name__}, not placements by name")
    return value
