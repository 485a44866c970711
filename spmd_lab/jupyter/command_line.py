"""Reads the line of a magic: words, the call among them, and rules. It knows nothing of IPython."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["LineError", "call_of", "expression_of", "rules_of", "separate", "split_top_level"]

_OPENING, _CLOSING, _QUOTES = "([{", ")]}", "\"'"


class LineError(Exception):
    """A line that cannot be read; its text is one sentence."""


def split_top_level(text: str, separators: str) -> list[str]:
    """Cut text where a separator stands outside of brackets and quotes; empty pieces are dropped.

    Examples
    --------
    >>> split_top_level("q=f32[8/tp, 4], **.o=o i/tp", ",")
    ['q=f32[8/tp, 4]', '**.o=o i/tp']
    >>> split_top_level("model(x, y) --mesh dp=4", " ")
    ['model(x, y)', '--mesh', 'dp=4']

    Raises
    ------
    LineError
        If a bracket or a quote stays open.
    """
    pieces, piece, depth, quote = [], "", 0, ""
    for position, character in enumerate(text):
        if quote:
            escaped = text[position - 1] == "\\" and text[position - 2 : position - 1] != "\\"
            quote = "" if character == quote and not escaped else quote
        elif character in _QUOTES:
            quote = character
        elif character in _OPENING + _CLOSING:
            depth += 1 if character in _OPENING else -1
        elif character in separators and depth == 0:
            pieces.append(piece.strip())
            piece = ""
            continue
        piece += character
    if quote or depth:
        raise LineError(f"a {'quote' if quote else 'bracket'} stays open in {text.strip()}")
    return [found for found in [*pieces, piece.strip()] if found]


def separate(line: str, flags: Collection[str]) -> tuple[list[str], str]:
    """The options of a line as words without their quotes, and what is left: the call.

    Options may stand before and after the call; ``flags`` are those that take no value.

    Examples
    --------
    >>> separate('model(x, y) --params "**.weight=o/dp i" --verify', {"--verify"})
    (['--params', '**.weight=o/dp i', '--verify'], 'model(x, y)')
    """
    options: list[str] = []
    rest: list[str] = []
    words = iter(split_top_level(line, " \t\n"))
    for word in words:
        if not word.startswith("-"):
            rest.append(word)
            continue
        name, equals, value = word.partition("=")
        options.extend([name, _unquoted(value)] if equals else [name])
        takes_value = name not in flags and not equals and (name.startswith("--") or len(name) == 2)
        following = next(words, None) if takes_value else None
        options.extend([] if following is None else [_unquoted(following)])
    return options, " ".join(rest)


def _unquoted(word: str) -> str:
    whole = len(word) > 1 and word[0] in _QUOTES and word[0] == word[-1] and word[0] not in word[1:-1]
    return word[1:-1] if whole else word


def call_of(text: str) -> ast.Call:
    """The call that a line makes.

    Raises
    ------
    LineError
        If it makes none.
    """
    tree = expression_of(text)
    if not text:
        raise LineError("the call is missing, as in model(x)")
    if not isinstance(tree, ast.Call):
        raise LineError(f"{text} is not a call, as in model(x)")
    return tree


def expression_of(text: str) -> ast.expr | None:
    """Text as an expression of Python; None where it is none.

    Examples
    --------
    >>> expression_of("colwise('**.q', axis='tp')") is None, expression_of("**.q=o/tp i") is None
    (False, True)
    """
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return None


def rules_of(text: str) -> dict[str, str]:
    """Rules as ``name=layout``, separated by commas.

    Examples
    --------
    >>> rules_of("**.q.weight=o/tp i, x=f32[8/dp, 4]{sum: tp}")
    {'**.q.weight': 'o/tp i', 'x': 'f32[8/dp, 4]{sum: tp}'}

    Raises
    ------
    LineError
        If a rule has no ``=``, no name, or a name that stands twice.
    """
    rules: dict[str, str] = {}
    for rule in split_top_level(text, ","):
        name, equals, layout = (part.strip() for part in rule.partition("="))
        if not equals or not name:
            raise LineError(f"{rule} is no rule, as in **.weight=o/dp i")
        if name in rules:
            raise LineError(f"{name} stands twice in {text}")
        rules[name] = layout
    return rules
