"""Documents that are zip files of XML, read with care: no zip bombs, no entities, no external references."""

from __future__ import annotations

import re
import zipfile
import zlib
from html.parser import HTMLParser
from io import BytesIO
from typing import Any
from xml.etree import ElementTree as ET

from gristmill.download.words import words

MOST_UNPACKED, MOST_MEMBERS = 256 * 2**20, 20_000
MOST_TAGS = 4_000_000
"""A tree of so many takes half a gigabyte."""

_BLOCKS = words(
    "p div br h1 h2 h3 h4 h5 h6 li tr blockquote section article table ul ol dl dt dd pre hr figcaption body title"
)
_SILENT = frozenset(("script", "style", "head", "svg", "math", "template"))
_BLANKS = re.compile(r"\n\s*\n\s*")


class ZippedError(ValueError):
    """A document that cannot be used, and why."""


class Zipped:
    """The members of a document. What is read of all of them together has a limit."""

    def __init__(self, data: bytes, max_bytes: int = MOST_UNPACKED) -> None:
        try:
            self.archive = zipfile.ZipFile(BytesIO(data))
        except (zipfile.BadZipFile, ValueError, OSError, EOFError) as error:
            raise ZippedError(f"damaged, or no zip file: {error}") from error
        self.names = set(self.archive.namelist())
        self.left = max_bytes
        if len(self.names) > MOST_MEMBERS:
            raise ZippedError(f"{len(self.names):,} members, more than the limit of {MOST_MEMBERS:,}")

    def read(self, name: str) -> bytes:
        if name not in self.names:
            raise ZippedError(f"it has no {name!r}")
        if self.archive.getinfo(name).flag_bits & 1:
            raise ZippedError("encrypted: it wants a password")
        try:
            with self.archive.open(name) as member:
                data = member.read(self.left + 1)
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, ValueError) as error:
            raise ZippedError(f"{name} is damaged: {error}") from error
        self.left -= len(data)
        if self.left < 0:
            raise ZippedError("more when unpacked than the limit (max_bytes): is this a zip bomb?")
        return data

    def xml(self, name: str) -> ET.Element:
        return parse_xml(self.read(name), name)


def parse_xml(data: bytes, name: str = "XML") -> ET.Element:
    """A tree. Declarations of entities are refused before anything is parsed."""
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise ZippedError(f"{name} is not valid {'UTF-16' if wide else 'UTF-8'}: {error.reason}") from error
    if "<!ENTITY" in text or "<!DOCTYPE" in text:
        raise ZippedError(f"{name} has a document type declaration, which is refused")
    if (tags := text.count("<")) > MOST_TAGS:
        raise ZippedError(f"{name} has {tags:,} tags, more than the limit of {MOST_TAGS:,}: is this a zip bomb?")
    try:
        return ET.fromstring(text)  # noqa: S314  there is nothing to expand
    except (ET.ParseError, ValueError) as error:
        raise ZippedError(f"{name} is no XML: {error}") from error


class _Words(HTMLParser):
    """The words of a page that is all content."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self.silent = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.silent += tag in _SILENT
        if tag in _BLOCKS:
            self.pieces.append("\n" if tag in ("br", "li", "tr") else "\n\n")

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        if tag in _BLOCKS:
            self.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self.silent = max(0, self.silent - (tag in _SILENT))
        if tag in _BLOCKS:
            self.pieces.append("\n" if tag in ("li", "tr") else "\n\n")

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.pieces.append(re.sub(r"\s+", " ", data))


def words_of(html: str) -> str:
    """The text of a page of a book."""
    reader = _Words()
    reader.feed(html)
    reader.close()
    lines = [line.strip() for line in "".join(reader.pieces).split("\n")]
    return _BLANKS.sub("\n\n", "\n".join(lines)).strip()
