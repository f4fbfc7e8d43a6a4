"""HTML in documents: entities, and whole markup.

Made for remains of markup in text that was extracted before, and for short pieces. It has no idea of what is the
content of a web page and what is its menu: that is the work of an extractor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import TYPE_CHECKING

from gristmill.io.formats.html_tags import END, START, TEXT, read_tags
from gristmill.text.argument_checks import check_count
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
_UNSEEN = frozenset({"script", "style", "template", "noscript", "svg", "iframe", "object"})
_SPACES = re.compile(r"\s+")


class HtmlEntityDecoder(DocumentModifier):
    """Turns HTML entities into the characters they stand for: `&amp;`, `&#8217;`, `&eacute;`.

    `passes` is how often: text that was escaped twice (`&amp;quot;`) needs 2.
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
    """Removes HTML markup and keeps the text that a reader would see.

    Tags go, and so do comments and the content of scripts and styles; entities become characters. Block elements and
    `<br>` end a line, table cells are separated by tabs, white space within a line becomes one space, and blank lines
    are left out. Documents without a tag, a comment or an entity stay as they are; a lone `<`, as in `a < b`, is text.
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
    """The text; a block is marked by a line feed, a cell by a tab. The text's own white space is spaces."""
    unseen = ""
    verbatim = 0
    for kind, piece in read_tags(html):
        if kind == TEXT:
            if not unseen:
                yield piece.replace("\t", " ") if verbatim else _SPACES.sub(" ", piece)
            continue
        if kind == START and piece in _UNSEEN:
            unseen = unseen or piece
        elif kind == END and piece == unseen:
            unseen = ""
        if piece == "pre":
            verbatim = max(0, verbatim + (kind == START) - (kind == END))
        if piece in _BLOCKS:
            yield "\n"
        elif piece in _CELLS:
            yield "\t"
