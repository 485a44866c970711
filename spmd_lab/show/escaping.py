"""Text within HTML and SVG: nothing in it acts, and all of it is seen."""

from __future__ import annotations

import re
from html import escape

__all__ = ["escape_text", "seen_text"]


def seen_text(text: str) -> str:
    r"""Text in which what would not be seen, or would turn other text around, is written as in Python.

    XML may not contain most of it.

    Examples
    --------
    >>> print(seen_text("bell" + chr(7)), seen_text(chr(0x202E) + "back"))
    bell\x07 \u202eback
    """
    return _UNSEEN.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def escape_text(text: str) -> str:
    """Text as HTML and XML show it, also within the quotes of an attribute.

    Examples
    --------
    >>> escape_text("a & <b>")
    'a &amp; &lt;b&gt;'
    """
    return escape(seen_text(text))
