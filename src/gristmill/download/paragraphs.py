"""Paragraphs of a page for jusText: those that its own `ParagraphMaker` makes, in a third of the time.

jusText parses and cleans the page, and jusText classifies the paragraphs. What lies between is done here: the tree is
walked without SAX, white space is looked at once, and a paragraph's text is made once, not each time it is asked for.

What is given up: the XPath of a paragraph, which nothing here needs.
"""

from __future__ import annotations

import re
from typing import Any

_ODD = re.compile(r"\s{2,}|[^\S ]")
"""White space that is not a single space."""

_HEADING = re.compile(r"\bh\d\b")


class Paragraph:
    """What jusText's functions ask of a paragraph."""

    __slots__ = ("cf_class", "chars_count_in_links", "class_type", "dom_path", "heading", "text", "words")

    def __init__(self, dom_path: str, nodes: list[str], linked: int) -> None:
        self.dom_path, self.chars_count_in_links = dom_path, linked
        self.text = normal("".join(nodes).strip())
        self.words = self.text.split()
        self.class_type = self.cf_class = ""
        self.heading = False

    def __len__(self) -> int:
        return len(self.text)

    @property
    def is_heading(self) -> bool:
        return _HEADING.search(self.dom_path) is not None

    @property
    def is_boilerplate(self) -> bool:
        return self.class_type != "good"

    def stopwords_density(self, stop_words: frozenset[str]) -> float:
        if not self.words:
            return 0
        return sum(map(stop_words.__contains__, map(str.lower, self.words))) / len(self.words)

    def links_density(self) -> float:
        return self.chars_count_in_links / len(self.text) if self.text else 0


def normal(text: str) -> str:
    """White space as one space, or one line feed where there was a line break."""
    return _ODD.sub(_replaced, text) if _ODD.search(text) else text


def _replaced(found: re.Match[str]) -> str:
    space = found[0]
    return "\n" if "\n" in space or "\r" in space else " "


class Maker:
    """Walks a tree and cuts its text where block elements begin and end, and at two line breaks in a row."""

    def __init__(self, block_tags: frozenset[str]) -> None:
        self.block_tags = block_tags
        self.made: list[Paragraph] = []
        self._path: list[str] = []
        self._nodes: list[str] = []
        self._where, self._linked = "", 0
        self._link = self._break = False

    def paragraphs(self, root: Any) -> list[Paragraph]:
        stack = [(self._start(root), root, iter(root))]
        while stack:
            name, element, children = stack[-1]
            child = next(children, None)
            if child is None:
                stack.pop()
                self._end(name)
                if stack and element.tail:
                    self._text(element.tail)
            elif isinstance(child.tag, str):
                stack.append((self._start(child), child, iter(child)))
            elif child.tail:  # a comment, or another thing that is no element
                self._text(child.tail)
        self._begin()
        return self.made

    def _begin(self) -> None:
        """A paragraph begins, and the one before it is over."""
        if self._nodes:
            made = Paragraph(self._where, self._nodes, self._linked)
            if made.text:
                self.made.append(made)
            self._nodes = []
        self._where = self._path[-1] if self._path else ""
        self._linked = 0

    def _start(self, element: Any) -> str:
        tag: str = element.tag
        name = tag.rpartition("}")[2]
        self._path.append(f"{self._path[-1]}.{name}" if self._path else name)
        if name in self.block_tags or (name == "br" and self._break):
            self._begin()
        else:
            self._break = name == "br"
            if self._break:
                self._nodes.append(" ")
            elif name == "a":
                self._link = True
        if element.text:
            self._text(element.text)
        return name

    def _end(self, name: str) -> None:
        self._path.pop()
        if name in self.block_tags:
            self._begin()
        if name == "a":
            self._link = False

    def _text(self, text: str) -> None:
        if text.isspace():
            return
        node = normal(text)
        self._nodes.append(node)
        if self._link:
            self._linked += len(node)
        self._break = False
