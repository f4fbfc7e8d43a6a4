"""PDF to text, on a CPU, with pypdfium2.

    PdfExtractor().extract({"content": pdf_bytes})   ->  {"text": "...", "pages": 3}

Text is in the order in which the file draws it; words hyphenated at the end of a line and lines of a paragraph are
joined. A file that is damaged, encrypted or larger than the limits raises, so its record goes to quarantine with the
reason; so does one that exceeds the `timeout_s` of the stage.

Gives up: scanned pages, which need OCR, and columns that the file does not draw one after the other.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gristmill.core.errors import require
from gristmill.download.source_interfaces import DocumentExtractor

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]")
_HYPHEN = re.compile("(?<=[^\\W\\d_])(?:-|\u00ad|\u2010|\x02|\ufffe)\n(?=[a-zß-öø-ÿа-я])")
_LIGATURES = str.maketrans(
    {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st", "\u00ad": ""}
)
_BLANKS = re.compile(r"\n{3,}")
_PASSWORD = 4
"""PDFium's error code for a missing or wrong password."""


class PdfError(ValueError):
    """A PDF that cannot be read. The message gives the reason."""


class PdfExtractor(DocumentExtractor):
    """Extracts the text of the PDF files in the column `content`. `per_page` separates pages by form feeds."""

    def __init__(
        self,
        max_pages: int | None = 2000,
        max_bytes: int = 256 * 2**20,
        max_seconds: float = 60.0,
        per_page: bool = False,
        join_lines: bool = True,
        password: str | None = None,
        content_field: str = "content",
    ) -> None:
        for name, value in (("max_pages", max_pages), ("max_bytes", max_bytes), ("max_seconds", max_seconds)):
            if value is not None and value <= 0:
                raise ValueError(f"{name} is {value!r}, must be above 0")
        self.max_pages, self.max_bytes, self.max_seconds = max_pages, max_bytes, max_seconds
        self.per_page, self.join_lines, self.password = per_page, join_lines, password
        self.content_field = content_field

    def setup(self) -> None:
        require("pypdfium2", "pdf", "reading PDF")

    def extract(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """Raises a PdfError for a file that cannot be read."""
        pages = self.pages(record[self.content_field] or b"")
        if not any(pages):
            self.count("without_text")
            return None
        rest = {name: value for name, value in record.items() if name != self.content_field}
        return {"text": ("\f" if self.per_page else "\n\n").join(pages).strip(), "pages": len(pages), **rest}

    def pages(self, data: bytes) -> list[str]:
        """The text of each page."""
        with open_pdf(data, self.max_bytes, self.password) as document:
            return self._read(document, require("pypdfium2", "pdf", "reading PDF"))

    def _read(self, document: Any, library: Any) -> list[str]:
        count = page_count(document, self.max_pages)
        deadline = time.monotonic() + self.max_seconds
        pages = []
        for number in range(count):
            if time.monotonic() > deadline:
                raise PdfError(f"only {number:,} of {count:,} pages were read in {self.max_seconds:g} s (max_seconds)")
            try:
                page = document[number]
                text_page = page.get_textpage()
                pages.append(clean_page_text(text_page.get_text_range(), self.join_lines))
                text_page.close()
                page.close()
            except library.PdfiumError as error:
                raise PdfError(f"page {number + 1} of {count:,} is damaged: {error}") from error
        return pages

    def input_columns(self) -> list[str]:
        return [self.content_field]

    def output_columns(self) -> list[str]:
        return ["text", "pages"]


@contextmanager
def open_pdf(data: bytes, max_bytes: int, password: str | None = None) -> Iterator[Any]:
    """The document of pypdfium2 in these bytes. Raises a PdfError that says why there is none."""
    if len(data) > max_bytes:
        raise PdfError(f"{len(data):,} bytes, more than the limit of {max_bytes:,} (max_bytes)")
    if b"%PDF-" not in data[:1024]:
        raise PdfError("not a PDF: it does not begin with %PDF")
    library = require("pypdfium2", "pdf", "reading PDF")
    try:
        document = library.PdfDocument(data, password=password)
    except library.PdfiumError as error:
        locked = getattr(error, "err_code", None) == _PASSWORD
        raise PdfError("encrypted: a password is required" if locked else f"damaged: {error}") from error
    try:
        yield document
    finally:
        document.close()


def page_count(document: Any, max_pages: int | None) -> int:
    count = len(document)
    if max_pages is not None and count > max_pages:
        raise PdfError(f"{count:,} pages, more than the limit of {max_pages:,} (max_pages)")
    return count


def clean_page_text(raw: str, join_lines: bool = True) -> str:
    """The text of a page without hyphens at line ends, ligatures or control characters, with paragraphs joined."""
    text = _HYPHEN.sub("", raw.replace("\r\n", "\n").replace("\r", "\n").replace("\x02\n", "-\n"))
    text = _CONTROL.sub("", text.translate(_LIGATURES))
    lines = [line.strip() for line in text.split("\n")]
    return _BLANKS.sub("\n\n", "\n".join(_join_lines(lines) if join_lines else lines)).strip()


def _join_lines(lines: list[str]) -> list[str]:
    """Join a line that is nearly as long as the longest ones to the next, unless that begins like a list item."""
    lengths = sorted(len(line) for line in lines if line)
    full_length = lengths[int(len(lengths) * 0.9)] * 0.75 if lengths else 0
    out: list[str] = []
    continues = False
    for line in lines:
        if continues and line and not re.match(r"[•\-–*▪]\s|\(?\d{1,3}[.)]\s", line):
            out[-1] = f"{out[-1]} {line}"
        else:
            out.append(line)
        continues = len(line) >= max(full_length, 25) and bool(line)
    return out
