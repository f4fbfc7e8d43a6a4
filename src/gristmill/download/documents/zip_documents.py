"""Documents that are zip files of XML, read with care: no zip bombs, no entities, no external references."""

from __future__ import annotations

import re
import zipfile
import zlib
from io import BytesIO
from xml.etree import ElementTree as ET

from gristmill.download.word_sets import word_set
from gristmill.io.formats.html_tags import EMPTY, END, START, TEXT, read_tags

MOST_UNPACKED, MOST_MEMBERS = 256 * 2**20, 20_000
MOST_TAGS = 4_000_000
"""A tree of so many takes half a gigabyte."""

_BLOCKS = word_set(
    "p div br h1 h2 h3 h4 h5 h6 li tr blockquote section article table ul ol dl dt dd pre hr figcaption body title"
)
_SILENT = frozenset(("script", "style", "head", "svg", "math", "template"))
_LINES = frozenset(("br", "li", "tr"))
_SPACES = re.compile(r"\s+")
_BLANKS = re.compile(r"\n\s*\n\s*")


class ZipDocumentError(ValueError):
    """A document that cannot be used, and why."""


class ZipDocument:
    """The members of a document. What is read of all of them together has a limit."""

    def __init__(self, data: bytes, max_bytes: int = MOST_UNPACKED) -> None:
        try:
            self.archive = zipfile.ZipFile(BytesIO(data))
        except (zipfile.BadZipFile, ValueError, OSError, EOFError) as error:
            raise ZipDocumentError(f"damaged, or no zip file: {error}") from error
        self.names = set(self.archive.namelist())
        self.left = max_bytes
        if len(self.names) > MOST_MEMBERS:
            raise ZipDocumentError(f"{len(self.names):,} members, more than the limit of {MOST_MEMBERS:,}")

    def read(self, name: str) -> bytes:
        if name not in self.names:
            raise ZipDocumentError(f"it has no {name!r}")
        if self.archive.getinfo(name).flag_bits & 1:
            raise ZipDocumentError("encrypted: it wants a password")
        try:
            with self.archive.open(name) as member:
                data = member.read(self.left + 1)
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, ValueError) as error:
            raise ZipDocumentError(f"{name} is damaged: {error}") from error
        self.left -= len(data)
        if self.left < 0:
            raise ZipDocumentError("more when unpacked than the limit (max_bytes): is this a zip bomb?")
        return data

    def xml(self, name: str) -> ET.Element:
        return parse_xml(self.read(name), name)


def parse_xml(data: bytes, name: str = "XML") -> ET.Element:
    """A tree. Declarations of entities are refused before anything is parsed."""
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise ZipDocumentError(f"{name} is not valid {'UTF-16' if wide else 'UTF-8'}: {error.reason}") from error
    if "<!ENTITY" in text or "<!DOCTYPE" in text:
        raise ZipDocumentError(f"{name} has a document type declaration, which is refused")
    if (tags := text.count("<")) > MOST_TAGS:
        raise ZipDocumentError(f"{name} has {tags:,} tags, more than the limit of {MOST_TAGS:,}: is this a zip bomb?")
    try:
        return ET.fromstring(text)  # noqa: S314  there is nothing to expand
    except (ET.ParseError, ValueError) as error:
        raise ZipDocumentError(f"{name} is no XML: {error}") from error


def xhtml_text(html: str) -> str:
    """The text of a page of a book, all of which is content."""
    pieces: list[str] = []
    silent = 0
    for kind, piece in read_tags(html):
        if kind == TEXT:
            pieces.append("" if silent else _SPACES.sub(" ", piece))
            continue
        if piece in _SILENT:
            silent = max(0, silent + (kind == START) - (kind == END))
        if piece in _BLOCKS:
            pieces.append("\n" if kind == EMPTY or piece in _LINES else "\n\n")
    lines = [line.strip() for line in "".join(pieces).split("\n")]
    return _BLANKS.sub("\n\n", "\n".join(lines)).strip()
