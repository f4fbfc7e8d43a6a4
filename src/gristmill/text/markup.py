"""HTML in documents: entities, and whole markup.

Made for remains of markup in text that was extracted before, and for short pieces. It has no idea of what is the
content of a web page and what is its menu: that is the work of an extractor.
"""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from typing import TYPE_CHECKING

from gristmill.text.edit import modify_matching
from gristmill.text.filters import check_count
from gristmill.text.modifiers import DocumentModifier

if TYPE_CHECKING:
    import pyarrow as pa

    from gristmill.text.filters import Texts

_BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "body", "br", "caption", "dd", "details", "dialog", "div", "dl",
    "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "head",
    "header", "hgroup", "hr", "html", "legend", "li", "main", "menu", "nav", "ol", "option", "p", "pre", "section",
    "select", "summary", "table", "tbody", "tfoot", "thead", "title", "tr", "ul",
})  # fmt: skip
_CELLS = frozenset({"td", "th"})
_UNSEEN = frozenset({"script", "style", "template", "noscript", "svg", "iframe", "object"})


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
        return modify_matching(texts, r"&[#a-zA-Z]", self.modify_document)


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
        return modify_matching(texts, self._SUSPECT, visible_text)


def visible_text(html: str) -> str:
    """The text of an HTML document or fragment, one line per block."""
    parser = _Text()
    parser.read(html)
    lines = "".join(parser.parts).split("\n")
    cells = [[" ".join(cell.split()) for cell in line.split("\t")] for line in lines]
    return "\n".join(line for line in ("\t".join(filter(None, line)) for line in cells) if line)


class HtmlReader(HTMLParser):
    """A parser that takes broken markup for text, and reads it once."""

    _COMMENT_END = re.compile(r"--!?\s*>")

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def read(self, html: str) -> None:
        """Parse a whole document. The parser of the library would look for the end of each tag that has none."""
        start = html.find("<", html.rfind(">") + 1)
        html, rest = (html, "") if start < 0 else (html[:start], html[start:])
        closed = max((found.end() for found in self._COMMENT_END.finditer(html)), default=0)
        self.feed(html[:closed] + html[closed:].replace("<!--", "&lt;!--"))
        self.close()
        if rest:
            self.handle_data(unescape(rest))

    def parse_marked_section(self, i: int, report: int = 1) -> int:
        end = self.rawdata.find(">", i)  # `<![if ...]>` and the like, for which the parser of the library raises
        return end + 1 if end >= 0 else -1


class _Text(HtmlReader):
    """Collects text; a block is marked by a line feed, a cell by a tab. The text's own white space is spaces."""

    _SPACES = re.compile(r"\s+")

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._unseen: list[str] = []
        self._verbatim = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _UNSEEN:
            self._unseen.append(tag)
        self._verbatim += tag == "pre"
        self._mark(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._mark(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._unseen:
            del self._unseen[self._unseen.index(tag) :]
        self._verbatim = max(0, self._verbatim - (tag == "pre"))
        self._mark(tag)

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self.parts.append(data.replace("\t", " ") if self._verbatim else self._SPACES.sub(" ", data))

    def _mark(self, tag: str) -> None:
        if tag in _BLOCKS:
            self.parts.append("\n")
        elif tag in _CELLS:
            self.parts.append("\t")
