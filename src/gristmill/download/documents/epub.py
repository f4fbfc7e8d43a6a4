"""EPUB to text: the chapters of a book in the order of its spine.

It gives up books with rights management, whose chapters are encrypted: they are told as such.
"""

from __future__ import annotations

import posixpath
from typing import Any
from urllib.parse import unquote

from gristmill.download.documents.zip_documents import MOST_UNPACKED, ZipDocument, ZipDocumentError, xhtml_text
from gristmill.download.interfaces import DocumentExtractor

_CONTAINER = "META-INF/container.xml"


class EpubExtractor(DocumentExtractor):
    """The text of books in the column `content`, and their titles."""

    def __init__(self, max_bytes: int = MOST_UNPACKED, content_field: str = "content") -> None:
        self.max_bytes, self.content_field = max_bytes, content_field

    def extract(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """Raises a ZippedError for a file that cannot be used."""
        title, chapters = self.chapters(record[self.content_field] or b"")
        if not chapters:
            self.count("without_text")
            return None
        rest = {name: value for name, value in record.items() if name != self.content_field}
        return {"text": "\n\n".join(chapters), "title": title, **rest}

    def chapters(self, data: bytes) -> tuple[str, list[str]]:
        book = ZipDocument(data, self.max_bytes)
        if "META-INF/rights.xml" in book.names:
            raise ZipDocumentError("encrypted: it has rights management")
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


def _tag(item: Any) -> str:
    return str(item.tag).rpartition("}")[2]
