"""DOCX and EPUB to text: zip files of XML, read safely (no zip bombs, no entities, no external references).

    DocxExtractor().extract({"content": docx_bytes})   ->  {"text": "..."}
    EpubExtractor().extract({"content": epub_bytes})   ->  {"text": "...", "title": "..."}

DOCX gives paragraphs, list items and table cells in document order; EPUB gives its chapters in the order of the spine.

Gives up: in DOCX, list numbers, text boxes, headers, footers and tracked deletions; EPUB files with rights management,
whose chapters are encrypted and which raise.
"""

from __future__ import annotations

import posixpath
import re
import zipfile
import zlib
from io import BytesIO
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree as ET

from gristmill.download.source_interfaces import DocumentExtractor
from gristmill.io.formats.html_tags import EMPTY, END, START, TEXT, read_tags

MAX_UNPACKED_BYTES, MAX_MEMBERS = 256 * 2**20, 20_000
MAX_TAGS = 4_000_000
"""A tree of this size takes half a gigabyte."""

_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_SKIPPED = frozenset(
    f"{_WORD}{name}" for name in ("del", "moveFrom", "instrText", "pPr", "rPr", "txbxContent", "sectPr")
)
_MARKS = {f"{_WORD}tab": "\t", f"{_WORD}br": "\n", f"{_WORD}cr": "\n", f"{_WORD}noBreakHyphen": "-"}
_MAX_DEPTH = 200
_CONTAINER = "META-INF/container.xml"
_UTF16 = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16", b"<\0": "utf-16-le", b"\0<": "utf-16-be"}
"""The first bytes of XML in UTF-16, with a byte order mark or without."""

_BLOCKS = frozenset(
    "p div br h1 h2 h3 h4 h5 h6 li tr blockquote section article table ul ol dl dt dd pre hr "  # noqa: SIM905
    "figcaption body title".split()
)
_HIDDEN = frozenset(("script", "style", "head", "svg", "math", "template"))
_LINES = frozenset(("br", "li", "tr"))
_EMPTY_LINES = re.compile(r"\n{3,}")
_SPACES = re.compile(r"\s+")
_BLANKS = re.compile(r"\n\s*\n\s*")
_DAMAGE = (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, ValueError)
"""What zipfile raises for a damaged file. An absurd version number raises NotImplementedError."""


class ZipDocumentError(ValueError):
    """A document that cannot be read. The message gives the reason."""


class ZipDocument:
    """The members of a zip file. `max_bytes` limits the unpacked size of all that are read, together."""

    def __init__(self, data: bytes, max_bytes: int = MAX_UNPACKED_BYTES) -> None:
        try:
            self.archive = zipfile.ZipFile(BytesIO(data))
        except _DAMAGE as error:
            raise ZipDocumentError(f"damaged, or not a zip file: {error}") from error
        self.names = set(self.archive.namelist())
        self.remaining = self.max_bytes = max_bytes
        if len(self.names) > MAX_MEMBERS:
            raise ZipDocumentError(f"{len(self.names):,} members, more than the limit of {MAX_MEMBERS:,}")

    def read(self, name: str) -> bytes:
        if name not in self.names:
            raise ZipDocumentError(f"{name!r} is missing")
        if self.archive.getinfo(name).flag_bits & 1:
            raise ZipDocumentError("encrypted: a password is required")
        try:
            with self.archive.open(name) as member:
                data = member.read(self.remaining + 1)
        except _DAMAGE as error:
            raise ZipDocumentError(f"{name} is damaged: {error}") from error
        self.remaining -= len(data)
        if self.remaining < 0:
            raise ZipDocumentError(f"more than {self.max_bytes:,} bytes when unpacked (max_bytes): a zip bomb?")
        return data

    def xml(self, name: str) -> ET.Element:
        return parse_xml(self.read(name), name)


class DocxExtractor(DocumentExtractor):
    """Extracts the text of the DOCX files in the column `content`."""

    def __init__(self, max_bytes: int = MAX_UNPACKED_BYTES, content_field: str = "content") -> None:
        self.max_bytes, self.content_field = max_bytes, content_field

    def extract(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """Raises a ZipDocumentError for a file that cannot be read."""
        text = self.text(record[self.content_field] or b"")
        if not text:
            self.count("without_text")
            return None
        return {"text": text, **{name: value for name, value in record.items() if name != self.content_field}}

    def text(self, data: bytes) -> str:
        pieces: list[str] = []
        _collect(ZipDocument(data, self.max_bytes).xml("word/document.xml"), pieces, 0)
        return _EMPTY_LINES.sub("\n\n", "".join(pieces)).strip()

    def input_columns(self) -> list[str]:
        return [self.content_field]

    def output_columns(self) -> list[str]:
        return ["text"]


class EpubExtractor(DocumentExtractor):
    """Extracts the text and the title of the EPUB files in the column `content`."""

    def __init__(self, max_bytes: int = MAX_UNPACKED_BYTES, content_field: str = "content") -> None:
        self.max_bytes, self.content_field = max_bytes, content_field

    def extract(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """Raises a ZipDocumentError for a file that cannot be read."""
        title, chapters = self.chapters(record[self.content_field] or b"")
        if not chapters:
            self.count("without_text")
            return None
        rest = {name: value for name, value in record.items() if name != self.content_field}
        return {"text": "\n\n".join(chapters), "title": title, **rest}

    def chapters(self, data: bytes) -> tuple[str, list[str]]:
        """The title, and the text of each chapter that has any."""
        book = ZipDocument(data, self.max_bytes)
        if "META-INF/rights.xml" in book.names:
            raise ZipDocumentError("encrypted: the book has rights management")
        root = next((item.get("full-path", "") for item in book.xml(_CONTAINER).iter() if _tag(item) == "rootfile"), "")
        package = book.xml(root)
        title = next(("".join(item.itertext()).strip() for item in package.iter() if _tag(item) == "title"), "")
        files = {item.get("id"): item.get("href", "") for item in package.iter() if _tag(item) == "item"}
        spine = [files.get(item.get("idref")) for item in package.iter() if _tag(item) == "itemref"]
        base = posixpath.dirname(root)
        names = [posixpath.normpath(posixpath.join(base, unquote(href.partition("#")[0]))) for href in spine if href]
        texts = [xhtml_text(book.read(name).decode("utf-8", "replace")) for name in names]
        return title, [text for text in texts if text]

    def input_columns(self) -> list[str]:
        return [self.content_field]

    def output_columns(self) -> list[str]:
        return ["text", "title"]


def parse_xml(data: bytes, name: str = "XML") -> ET.Element:
    """An element tree. Document type declarations, which can define entities, are refused before parsing."""
    encoding = next((encoding for start, encoding in _UTF16.items() if data.startswith(start)), "utf-8-sig")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ZipDocumentError(f"{name} is not valid {encoding[:6].upper()}: {error.reason}") from error
    if "\0" in text:  # the parser would take it for UTF-16, in which a declaration looks different
        raise ZipDocumentError(f"{name} is not valid XML: it has null characters")
    if "<!ENTITY" in text or "<!DOCTYPE" in text:
        raise ZipDocumentError(f"{name} has a document type declaration, which is not allowed")
    if (tags := text.count("<")) > MAX_TAGS:
        raise ZipDocumentError(f"{name} has {tags:,} tags, more than the limit of {MAX_TAGS:,}: a zip bomb?")
    try:
        return ET.fromstring(text)  # noqa: S314  entities were refused above
    except (ET.ParseError, ValueError) as error:
        raise ZipDocumentError(f"{name} is not valid XML: {error}") from error


def xhtml_text(html: str) -> str:
    """The text of an XHTML page that is all content, such as a chapter."""
    pieces: list[str] = []
    hidden_depth = 0
    for kind, piece in read_tags(html):
        if kind == TEXT:
            pieces.append("" if hidden_depth else _SPACES.sub(" ", piece))
            continue
        if piece in _HIDDEN:
            hidden_depth = max(0, hidden_depth + (kind == START) - (kind == END))
        if piece in _BLOCKS:
            pieces.append("\n" if kind == EMPTY or piece in _LINES else "\n\n")
    lines = [line.strip() for line in "".join(pieces).split("\n")]
    return _BLANKS.sub("\n\n", "\n".join(lines)).strip()


def _collect(element: Any, pieces: list[str], depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise ValueError(f"elements are nested more than {_MAX_DEPTH} levels deep")
    for child in element:
        tag = child.tag
        if tag in _SKIPPED:
            continue
        if tag == f"{_WORD}t":
            pieces.append(child.text or "")
        elif tag in _MARKS:
            pieces.append(_MARKS[tag])
        else:
            _collect(child, pieces, depth + 1)
        if tag == f"{_WORD}p":
            pieces.append("\n\n")
        elif tag == f"{_WORD}tc":
            # a cell ends with a tab, in place of the blank line after its last paragraph
            pieces[-1:] = ["\t"] if pieces[-1:] == ["\n\n"] else [*pieces[-1:], "\t"]
        elif tag == f"{_WORD}tr":
            pieces.append("\n")


def _tag(item: Any) -> str:
    return str(item.tag).rpartition("}")[2]
