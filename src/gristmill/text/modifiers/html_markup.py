"""Modifiers for HTML in documents: decode entities, remove markup.

They are made for remains of markup in extracted text, and for short fragments. They do not separate the content of a
web page from its menus: use an extractor for that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import TYPE_CHECKING

from gristmill.io.formats.html_tags import END, START, TEXT, read_tags
from gristmill.samples.argument_checks import check_count
from gristmill.text.document_modifier import DocumentModifier
from gristmill.text.modifiers.removers import modify_matching_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from gristmill.text.text_columns import Texts

_BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "body", "br", "caption", "dd", "details", "dialog", "div", "dl",
    "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "head",
    "header", "hgroup", "hr", "html", "legend", "li", "main", "menu", "nav", "ol", "option", "p", "pre", "section",
    "select", "summary", "table", "tbody", "tfoot", "thead", "title", "tr", "ul",
})  # fmt: skip
_CELLS = frozenset({"td", "th"})
_INVISIBLE = frozenset({"script", "style", "template", "noscript", "svg", "iframe", "object"})
_SPACES = re.compile(r"\s+")


class HtmlEntityDecoder(DocumentModifier):
    """Replaces HTML entities by their characters: `&amp;`, `&#8217;`, `&eacute;`.

    `passes` is how often; text that was escaped twice (`&amp;quot;`) needs 2.
    """

    def __init__(self, passes: int = 1) -> None:
        check_count("HtmlEntityDecoder", "passes", passes, least=1)
        self.passes = passes

    def modify_document(self, text: str) -> str:
        for _ in range(self.passes):
            text = unescape(text)
        return text

    def modify_batch(self, texts: Texts) -> pa.Array:
        return modify_matching_rows(texts, r"&[#a-zA-Z]", self.modify_document)


class HtmlRemover(DocumentModifier):
    """Removes HTML markup and keeps the visible text.

    Tags, comments and the content of scripts and styles are removed, and entities become characters. Block elements and
    `<br>` end a line, table cells are separated by tabs, white space within a line becomes one space, and blank lines
    are left out. Documents without a tag, comment or entity are not changed; a lone `<`, as in `a < b`, is text.
    """

    _SUSPECT = r"<[a-zA-Z/!?]|&[#a-zA-Z]"

    def modify_document(self, text: str) -> str:
        if not re.search(self._SUSPECT, text):
            return text
        return visible_text(text)

    def modify_batch(self, texts: Texts) -> pa.Array:
        return modify_matching_rows(texts, self._SUSPECT, visible_text)


def visible_text(html: str) -> str:
    """The text of an HTML document or fragment, one line per block."""
    lines = "".join(_pieces(html)).split("\n")
    cells = [[" ".join(cell.split()) for cell in line.split("\t")] for line in lines]
    return "\n".join(line for line in ("\t".join(filter(None, line)) for line in cells) if line)


def _pieces(html: str) -> Iterator[str]:
    """Pieces of text, with a line feed for each block and a tab for each cell. White space of the text is spaces."""
    hidden_in = ""
    pre_depth = 0
    for kind, piece in read_tags(html):
        if kind == TEXT:
            if not hidden_in:
                yield piece.replace("\t", " ") if pre_depth else _SPACES.sub(" ", piece)
            continue
        if kind == START and piece in _INVISIBLE:
            hidden_in = hidden_in or piece
        elif kind == END and piece == hidden_in:
            hidden_in = ""
        if piece == "pre":
            pre_depth = max(0, pre_depth + (kind == START) - (kind == END))
        if piece in _BLOCKS:
            yield "\n"
        elif piece in _CELLS:
            yield "\t"
