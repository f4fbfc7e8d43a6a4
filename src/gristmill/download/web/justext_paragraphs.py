"""Paragraphs of a page for jusText: those that its own `ParagraphMaker` makes. A page takes a quarter of its time.

jusText cleans the page and classifies the paragraphs. What lies around that is done here: elements are of a class that
lxml need not ask Python for, the tree is walked without SAX, and a paragraph's white space is looked at once.

What is given up: the XPath of a paragraph, which nothing here needs.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any

from gristmill.download.web.stop_lists import stop_word_counter

_ODD = re.compile(r"\s{2,}|[^\S ]")
"""White space that is not a single space."""

_HEADING = re.compile(r"\bh\d\b")
_EVENTS = ("start", "end", "comment", "pi")


class Paragraph:
    """What jusText's functions ask of a paragraph."""

    __slots__ = ("cf_class", "chars_count_in_links", "class_type", "dom_path", "heading", "text")

    def __init__(self, dom_path: str, text: str, linked: int) -> None:
        self.dom_path, self.chars_count_in_links, self.text = dom_path, linked, text
        self.class_type = self.cf_class = ""
        self.heading = False

    def __len__(self) -> int:
        return len(self.text)

    @property
    def is_heading(self) -> bool:
        return _in_heading(self.dom_path)

    @property
    def is_boilerplate(self) -> bool:
        return self.class_type != "good"

    def stopwords_density(self, stop_words: frozenset[str]) -> float:
        stops, words = stop_word_counter(stop_words)(self.text)
        return stops / words if words else 0

    def links_density(self) -> float:
        return self.chars_count_in_links / len(self.text) if self.text else 0


@lru_cache(4096)  # pages have few places that text is in
def _in_heading(dom_path: str) -> bool:
    return _HEADING.search(dom_path) is not None


def normalise_whitespace(text: str) -> str:
    """White space as one space, or one line feed where there was a line break."""
    return _ODD.sub(_replaced, text) if _ODD.search(text) else text


def _replaced(found: re.Match[str]) -> str:
    space = found[0]
    return "\n" if "\n" in space or "\r" in space else " "


def _add(made: list[Paragraph], where: str, nodes: list[str], linked: int) -> None:
    text = "".join(nodes).strip()
    if text:
        made.append(Paragraph(where, text if " ".join(text.split()) == text else normalise_whitespace(text), linked))


@cache
def _classes() -> Any:
    """Elements with the methods that cleaning asks for. Forms and their fields have no classes of their own: for those
    lxml would call a function of Python at each element."""
    from lxml import etree, html

    return etree.ElementDefaultClassLookup(
        html.HtmlElement, html.HtmlComment, html.HtmlProcessingInstruction, html.HtmlEntity
    )


def clean_tree(html: str) -> Any:
    """The tree of a page as jusText parses it, without what it cleans away."""
    from justext import core
    from lxml.html import HTMLParser, fromstring

    parser = HTMLParser()
    parser.set_element_class_lookup(_classes())
    try:
        tree = fromstring(html, parser=parser)
    except ValueError:  # XHTML that says its encoding
        tree = fromstring(html.encode("utf-8", "replace"), parser=parser)
    return core.preprocessor(tree)


def paragraphs_of(root: Any, block_tags: frozenset[str]) -> list[Paragraph]:
    """The text of a tree, cut where block elements begin and end, and at two line breaks in a row."""
    from lxml.etree import iterwalk

    made: list[Paragraph] = []
    nodes: list[str] = []
    open_tags: list[tuple[str, str]] = []
    where, linked, link, broken = "", 0, False, False
    for event, element in iterwalk(root, events=_EVENTS):
        cut = False
        if event == "start":
            tag: str = element.tag
            name = tag.rpartition("}")[2] if tag.startswith("{") else tag
            open_tags.append((f"{open_tags[-1][0]}.{name}" if open_tags else name, name))
            cut = name in block_tags or (name == "br" and broken)
            if not cut:
                broken = name == "br"
                link = link or name == "a"
            text = element.text
        else:
            if event == "end":
                name = open_tags.pop()[1]
                cut = name in block_tags
                link = link and name != "a"
            text = element.tail
        if cut:
            if nodes:
                _add(made, where, nodes, linked)
                nodes = []
            where, linked = (open_tags[-1][0] if open_tags else ""), 0
        elif broken and event == "start" and name == "br":
            nodes.append(" ")
        if text and not text.isspace():
            nodes.append(text)
            broken = False
            if link:
                linked += len(normalise_whitespace(text))
    _add(made, where, nodes, linked)
    return made
