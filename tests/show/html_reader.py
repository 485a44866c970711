"""Reads back what HTML shows, and what it is made of."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = frozenset({"img", "meta"})


@dataclass
class Seen:
    text: str = ""
    tags: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    images: list[tuple[str, str]] = field(default_factory=list)
    open_tags: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen = Seen()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.tags.add(tag)
        self.seen.attributes |= {name for name, _ in attrs}
        if tag == "img":
            given = {name: value or "" for name, value in attrs}
            head, _, data = given["src"].partition(",")
            assert head == "data:image/svg+xml;base64"
            self.seen.images.append((given["alt"], b64decode(data).decode()))
        if tag not in VOID:
            self.seen.open_tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.seen.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        self.seen.text += data


def read(html: str) -> Seen:
    """What a reader of the page sees; fails where elements are not well nested."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert not reader.seen.open_tags
    return reader.seen
