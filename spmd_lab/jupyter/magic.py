"""The magics ``%spmd_expand`` and ``%%spmd_expand``."""

# The decorators of IPython have no types.
# mypy: disable-error-code="no-untyped-call, untyped-decorator"

from __future__ import annotations

import ast
import linecache
from difflib import get_close_matches
from operator import itemgetter
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import (
    Magics,
    line_cell_magic,
    magics_class,
    needs_local_scope,
    no_var_expand,
    output_can_be_silenced,
)
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

import spmd_lab as sl
from spmd_lab.errors import nearest
from spmd_lab.jupyter.cell import cell_program
from spmd_lab.jupyter.command_line import LineError, call_of, expression_of, rules_of, separate
from spmd_lab.jupyter.proved import proved

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable

__all__ = ["SpmdMagics"]

_FLAGS = frozenset({"--verify", "--film", "-h", "--help"})


@magics_class
class SpmdMagics(Magics):
    """The magics of spmd_lab."""

    @needs_local_scope
    @no_var_expand
    @output_can_be_silenced
    @line_cell_magic
    @magic_arguments()
    @argument("call", nargs="?", help="the program and its example inputs, as a call: model(x, y, mask=m)")
    @argument("--mesh", help="axes and sizes, outermost first: dp=2,tp=4; or a variable that holds a Mesh")
    @argument("--batch", help="the axis that divides dim 0 of the inputs: dp; or with their names: dp,tokens")
    @argument(
        "--params", action="append", help='placements by name: "**.weight=o/dp i, **.bias=o/dp"; or an expression'
    )
    @argument("--stored", action="append", help='how parameters rest: fsdp("dp"); or rules, as of --params')
    @argument("--inputs", help='placements by name: "x=b/dp d"; or an expression')
    @argument("--pending", choices=["resolve", "keep"], help="what becomes of outputs that are pending")
    @argument("--unsupported", choices=["replicate", "error"], help="what becomes of operators without a rule")
    @argument("--random", choices=["exact", "local"], help="whose random numbers are drawn")
    @argument("--loss", help="the name of the loss function, or an expression: 'lambda out: out.sum()'")
    @argument("--verify", action="store_true", help="run every rank, and show the proof with the expansion")
    @argument("--film", action="store_true", help="show the film too: every step, one at a time")
    @argument("-o", dest="output", metavar="NAME", help="the variable to keep the expansion in")
    @argument("-h", "--help", action="store_true", help="show this")
    def spmd_expand(
        self, line: str, cell: str | None = None, local_ns: dict[str, Any] | None = None
    ) -> sl.Expansion | None:
        """Expand a call, or a cell of plain tensor code, over a mesh; show the expansion and return it.

        The line ::

            %spmd_expand model(x) --mesh dp=4 --batch dp --params "**.weight=o/dp i"

        stands for ::

            spmd_lab.spmd_expand(model, x, mesh=Mesh(dp=4), batch="dp", params={"**.weight": "o/dp i"})

        Options may stand before or after the call. Rules are separated by commas; ``--params`` may be given
        several times, and takes ``colwise("**.q", axis="tp")`` as well. As with any value, a notebook shows the
        expansion if the line is the last one of its cell and has no ``;`` at its end; ``-o expansion`` keeps it in that
        variable too, ``expansion = %spmd_expand ...`` instead.

        As a cell, the code is what is expanded: the tensors that it reads are its inputs, those that it assigns its
        outputs, and the notebook's variables get the values that they have on one device. The cell ::

            %%spmd_expand --mesh dp=2,tp=2 --inputs "x=b/dp d, w=d h/tp"
            h = x @ w
            y = h.relu()

        stands for ::

            def cell(x, w):
                h = x @ w
                y = h.relu()
                return {"h": h, "y": y}
            spmd_lab.spmd_expand(cell, x, w, mesh=Mesh(dp=2, tp=2), inputs={"x": "b/dp d", "w": "d h/tp"})

        There, ``--loss`` may name one of its outputs. Where an operator cannot be expanded, the steps before it are
        shown above the error.

        With ``--verify`` the expansion shows itself with its proof, as ``expansion.card(expansion.program.verify())``
        does, and has it as ``expansion.report``.
        """
        names = {**self._variables, **(local_ns or {})}
        try:
            return self._expand(line, names) if cell is None else self._expand_cell(line, cell, names)
        except LineError as error:
            raise UsageError(f"%spmd_expand: {error}") from None

    @property
    def _variables(self) -> dict[str, Any]:
        """The variables of the notebook."""
        assert self.shell is not None
        variables: dict[str, Any] = self.shell.user_ns
        return variables

    def _given(self, line: str) -> tuple[Namespace, str]:
        """The options of a line, and its call; what a semicolon means is up to the notebook."""
        options, text = separate(line.rstrip().removesuffix(";"), _FLAGS)
        magic: Any = self.spmd_expand
        flags = [flag for action in magic.parser._actions for flag in action.option_strings]  # noqa: SLF001
        for option in options:
            if option.startswith("--") and not any(flag.startswith(option) for flag in flags):
                raise LineError(f"there is no {option}: {nearest(option, flags)}")
        try:
            given: Namespace = magic.parser.parse_args(options)
        except UsageError as error:
            raise LineError(str(error).removeprefix("argument ")) from None
        if given.output is not None and not given.output.isidentifier():
            raise LineError(f"-o {given.output} is no name for a variable")
        return given, text

    def _expand(self, line: str, names: dict[str, Any]) -> sl.Expansion | None:
        given, text = self._given(line)
        if given.help:
            self._help()
            return None
        call = call_of(text)
        mesh = _mesh(given.mesh, names)
        fn, args, kwargs = _evaluate_call(call, names)
        return self._shown(given, _expanded(fn, args, kwargs, mesh, _placing(given, names)))

    def _expand_cell(self, line: str, cell: str, names: dict[str, Any]) -> sl.Expansion | None:
        given, text = self._given(line)
        if given.help:
            self._help()
            return None
        if text:
            raise LineError(f"{text} is not an option; in a cell, the code itself is what is expanded")
        mesh = _mesh(given.mesh, names)
        assert self.shell is not None
        program = cell_program(cell, self.shell.compile.cache(cell), names)
        self._variables.update(program.values)
        placing = _placing(given, {**names, **program.values}, frozenset(program.values))
        return self._shown(given, _expanded(program.function, program.inputs.values(), {}, mesh, placing))

    def _help(self) -> None:
        """What ``%spmd_expand?`` shows."""
        assert self.shell is not None
        self.shell.run_line_magic("pinfo", "%spmd_expand")

    def _shown(self, given: Namespace, expansion: sl.Expansion) -> sl.Expansion:
        """Prove an expansion, keep it, and show what is wanted besides."""
        if given.verify:
            expansion = proved(expansion)
        if given.output is not None:
            self._variables[given.output] = expansion
        if given.film:
            display(expansion.film())
        return expansion


def _expanded(
    fn: Any, args: Iterable[Any], kwargs: dict[str, Any], mesh: sl.Mesh, placing: dict[str, Any]
) -> sl.Expansion:
    """The expansion; where it fails, the steps before that are shown."""
    try:
        return sl.spmd_expand(fn, *args, kwargs=kwargs, mesh=mesh, **placing)
    except sl.SpmdLabError as error:
        if error.steps:
            display(error.steps)
        raise


def _evaluate(tree: ast.expr, names: dict[str, Any]) -> Any:
    """The value of an expression; its errors are the user's, and its text can be quoted by them and by the trace.

    Raises
    ------
    LineError
        If it reads a variable that is not there.
    """
    text = ast.unparse(tree)
    file = f"<{text}>"
    linecache.cache[file] = (len(text), None, [text], file)
    try:
        return eval(compile(text, file, "eval"), names)
    except NameError as error:
        if len(list(walk_tb(error.__traceback__))) > 2:  # in code that the expression calls
            raise
        variables = [name for name in names if not name.startswith("_") and name not in ("In", "Out")]
        known = get_close_matches(str(error.name), variables, 1)
        hint = f": did you mean {known[0]}?" if known else ""
        raise LineError(f"{error.name} is not defined{hint}") from None


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


def _placing(given: Namespace, names: dict[str, Any], outputs: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The options that were given, as the arguments of `spmd_lab.spmd_expand`."""
    placing: dict[str, Any] = {}
    if given.batch is not None:
        axis, *inputs = (part.strip() for part in given.batch.split(","))
        placing["batch"] = (axis, *inputs) if inputs else axis
    for option in ("params", "stored"):
        texts = getattr(given, option)
        if texts is not None:
            rules = [_placements(f"--{option}", text, names) for text in texts]
            placing[option] = {name: layout for each in rules for name, layout in each.items()}
    if given.inputs is not None:
        placing["inputs"] = _placements("--inputs", given.inputs, names)
    for name in ("pending", "unsupported", "random"):
        if getattr(given, name) is not None:
            placing[name] = getattr(given, name)
    if given.loss is not None:
        if given.loss in outputs:
            return {**placing, "loss": itemgetter(given.loss)}
        tree = expression_of(given.loss)
        if tree is None:
            raise LineError(f"--loss {given.loss} is no expression")
        try:
            placing["loss"] = _evaluate(tree, names)
        except LineError as error:
            raise LineError(
                f"--loss {given.loss}: {error}; a function of the output, as lambda out: out.sum()"
            ) from None
    return placing


def _placements(option: str, text: str, names: dict[str, Any]) -> Any:
    """Placements by name: rules, or an expression that gives them."""
    tree = expression_of(text)
    if tree is None:
        return rules_of(text)
    public = {name: getattr(sl, name) for name in sl.__all__}
    try:
        value = _evaluate(tree, {**public, **names})
    except LineError as error:
        raise LineError(f"{option} {text}: {error}; a rule is written as **.weight=o/dp i") from None
    if not isinstance(value, dict | list | tuple) or (option != "--inputs" and not isinstance(value, dict)):
        raise LineError(f"{option} {text} gives a {type(value).__name__}, not placements by name")
    return value
