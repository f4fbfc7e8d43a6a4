"""DOCX to text: paragraphs, list items and cells of tables, in their order.

It gives up numbers of lists, text boxes, headers, footers and what was deleted under revision.
"""

from __future__ import annotations

import re
from typing import Any

from gristmill.download.documents.zip_documents import MOST_UNPACKED, ZipDocument
from gristmill.download.interfaces import DocumentExtractor

_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_SKIPPED = frozenset(
    f"{_WORD}{name}" for name in ("del", "moveFrom", "instrText", "pPr", "rPr", "txbxContent", "sectPr")
)
_MARKS = {f"{_WORD}tab": "\t", f"{_WORD}br": "\n", f"{_WORD}cr": "\n", f"{_WORD}noBreakHyphen": "-"}
_DEEPEST = 200
_BLANKS = re.compile(r"\n{3,}")


class DocxExtractor(DocumentExtractor):
    """The text of documents in the column `content`."""

    def __init__(self, max_bytes: int = MOST_UNPACKED, content_field: str = "content") -> None:
        self.max_bytes, self.content_field = max_bytes, content_field

    def extract(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """Raises a ZippedError for a file that cannot be used."""
        text = self.text(record[self.content_field] or b"")
        if not text:
            self.count("without_text")
            return None
        return {"text": text, **{name: value for name, value in record.items() if name != self.content_field}}

    def text(self, data: bytes) -> str:
        pieces: list[str] = []
        _collect(ZipDocument(data, self.max_bytes).xml("word/document.xml"), pieces, 0)
        return _BLANKS.sub("\n\n", "".join(pieces)).strip()

    def input_columns(self) -> list[str]:
        return [self.content_field]

    def output_columns(self) -> list[str]:
        return ["text"]


def _collect(element: Any, pieces: list[str], depth: int) -> None:
    if depth > _DEEPEST:
        raise ValueError(f"more than {_DEEPEST} levels of elements in each other")
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
            pieces[-1:] = ["\t"] if pieces[-1:] == ["\n\n"] else [*pieces[-1:], "\t"]
        elif tag == f"{_WORD}tr":
            pieces.append("\n")
