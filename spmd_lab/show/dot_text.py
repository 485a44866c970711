"""A graph in the language of Graphviz."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["dot_text"]


def dot_text(nodes: Mapping[str, Mapping[str, str | int]], edges: Iterable[tuple[str, str]]) -> str:
    r"""A directed graph with the attributes of its nodes, all of them quoted: no name is a keyword, none is HTML.

    Examples
    --------
    >>> print(dot_text({"graph": {"label": '<a "b">'}, "x": {}}, [("x", "graph")]), end="")
    digraph {
      "graph" [label="<a \"b\">"];
      "x" [];
      "x" -> "graph";
    }
    """
    told = [f"  {_quoted(name)} [{', '.join(_attributes(facts))}];" for name, facts in nodes.items()]
    told += [f"  {_quoted(tail)} -> {_quoted(head)};" for tail, head in edges]
    return "\n".join(["digraph {", *told, "}\n"])


def _attributes(facts: Mapping[str, str | int]) -> Iterable[str]:
    return (f"{key}={_quoted(str(value))}" for key, value in facts.items())


def _quoted(text: str) -> str:
    """Within quotes, a backslash stands before another, before quotes and for the end of a line."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
