"""PDF to items: blocks of text and pictures, in reading order, with pypdfium2.

Text is in the order in which the file draws it, as in `PdfExtractor`; lines that stand close together make a block. A
picture comes after the last block above it in its column. JPEG is taken out as it is, other pictures become PNG.

Gives up: scanned pages, which are one picture each and need OCR; drawings made of lines; tables, which are text.
"""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from gristmill.core.errors import require
from gristmill.download.documents.pdf import PdfError, clean_page_text, open_pdf, page_count
from gristmill.interleaved.item_columns import IMAGE, TEXT
from gristmill.samples.argument_checks import check_positive

MAX_PICTURES = 2000
"""Pictures of one page. Drawings may be made of thousands of small ones."""
MAX_PICTURE_BYTES = 512 * 2**20
"""Bytes of the pictures of one file."""
_NESTED_FORMS = 5
_LINE_GAP = 0.6
"""Lines whose distance is below this share of their height, that of the font, are of one block."""


class _Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float

    def shares_column(self, other: _Box) -> bool:
        return self.left < other.right and other.left < self.right


class PdfItems:
    """Reads the items of PDF files, within limits."""

    def __init__(
        self,
        images: bool = True,
        max_pages: int | None = 2000,
        max_seconds: float = 60.0,
        max_bytes: int = 256 * 2**20,
        min_side: int = 16,
        max_pixels: int = 89_478_485,
        password: str | None = None,
    ) -> None:
        for name, value in (("max_bytes", max_bytes), ("min_side", min_side), ("max_pixels", max_pixels)):
            check_positive("PDF", name, value)
        if max_seconds <= 0 or (max_pages is not None and max_pages <= 0):
            raise ValueError(f"max_seconds is {max_seconds!r} and max_pages {max_pages!r}: both must be above 0")
        self.images, self.max_pages, self.max_seconds, self.max_bytes = images, max_pages, max_seconds, max_bytes
        self.min_side, self.max_pixels, self.password = min_side, max_pixels, password
        self.counts: Counter[str] = Counter()
        self._left = MAX_PICTURE_BYTES

    def pages(self, data: bytes) -> Iterator[list[dict[str, Any]]]:
        """The items of each page. Raises a PdfError for a file that cannot be read."""
        library = require("pypdfium2", "pdf", "reading PDF")
        with open_pdf(data, self.max_bytes, self.password) as document:
            count = page_count(document, self.max_pages)
            deadline = time.monotonic() + self.max_seconds
            for number in range(count):
                try:
                    page = document[number]
                    items = self._page(library, page, number, deadline)
                    page.close()
                except library.PdfiumError as error:
                    raise PdfError(f"page {number + 1} of {count:,} is damaged: {error}") from error
                if time.monotonic() > deadline:
                    raise PdfError(
                        f"only {number:,} of {count:,} pages were read in {self.max_seconds:g} s (max_seconds)"
                    )
                yield items

    def _page(self, library: Any, page: Any, number: int, deadline: float) -> list[dict[str, Any]]:
        blocks = list(_text_blocks(page))
        pictures = list(self._pictures(library, page, number, deadline)) if self.images else []
        after: dict[int, list[dict[str, Any]]] = {}
        for box, item in sorted(pictures, key=lambda pair: (-pair[0].top, pair[0].left)):
            after.setdefault(_place(box, [block for block, _ in blocks]), []).append(item)
        items = after.get(-1, [])
        for at, (_, text) in enumerate(blocks):
            items.append({"kind": TEXT, "text": text, "meta": {"page": number + 1}})
            items += after.get(at, [])
        return items

    def _pictures(self, library: Any, page: Any, number: int, deadline: float) -> Iterator[tuple[_Box, dict[str, Any]]]:
        kinds = [library.raw.FPDF_PAGEOBJ_IMAGE]
        for at, found in enumerate(page.get_objects(filter=kinds, max_depth=_NESTED_FORMS)):
            if at >= MAX_PICTURES or time.monotonic() > deadline:
                self.counts["pictures_left_out"] += 1
                return
            try:
                width, height = found.get_px_size()
                box = _Box(*found.get_bounds())
                if min(width, height) < self.min_side or width * height > self.max_pixels or self._left <= 0:
                    self.counts["pictures_left_out"] += 1
                    continue
                data, mime = _picture_bytes(found)
            except (library.PdfiumError, OSError, ValueError, MemoryError):
                self.counts["damaged_pictures"] += 1
                continue
            self._left -= len(data)
            yield (
                box,
                {
                    "kind": IMAGE,
                    "bytes": data,
                    "mime": mime,
                    "width": width,
                    "height": height,
                    "meta": {"page": number + 1},
                },
            )


def _picture_bytes(found: Any) -> tuple[bytes, str]:
    """JPEG as it is in the file; anything else as PNG."""
    filters = found.get_filters()
    if filters and filters[-1] == "DCTDecode":
        data = bytes(found.get_data(decode_simple=len(filters) > 1))
        if data[:3] == b"\xff\xd8\xff":
            return data, "image/jpeg"
    bitmap = found.get_bitmap()
    try:
        require("PIL.Image", "image", "pictures of PDF files that are no JPEG")
        out = io.BytesIO()
        picture = bitmap.to_pil()
        picture.save(out, "PNG")
    finally:
        bitmap.close()
    return out.getvalue(), "image/png"


def _place(box: _Box, blocks: list[_Box]) -> int:
    """The block after which a picture stands: the last above it in its column, or else the last above it; -1: none."""
    middle = (box.top + box.bottom) / 2
    above = [at for at, block in enumerate(blocks) if (block.top + block.bottom) / 2 >= middle]
    beside = [at for at in above if blocks[at].shares_column(box)]
    if beside:
        return beside[-1]
    if any(block.shares_column(box) for block in blocks):  # at the head of its column: before the first block there
        return next(at for at, block in enumerate(blocks) if block.shares_column(box)) - 1
    return above[-1] if above else -1


def _text_blocks(page: Any) -> Iterator[tuple[_Box, str]]:
    """Lines that stand close to each other, with the box around them."""
    text_page = page.get_textpage()
    try:
        lines = list(_lines(text_page))
    finally:
        text_page.close()
    block: list[tuple[_Box, str]] = []
    for box, line in lines:
        if block and not _continues(block[-1][0], box):
            yield from _joined(block)
            block = []
        block.append((box, line))
    yield from _joined(block)


def _joined(block: list[tuple[_Box, str]]) -> Iterator[tuple[_Box, str]]:
    text = clean_page_text("\n".join(line for _, line in block))
    if text:
        lefts, bottoms, rights, tops = zip(*(box for box, _ in block), strict=True)
        yield _Box(min(lefts), min(bottoms), max(rights), max(tops)), text


def _continues(above: _Box, below: _Box) -> bool:
    """Whether a line stands directly under another, or beside it."""
    height = max(above.top - above.bottom, below.top - below.bottom, 1.0)
    gap = above.bottom - below.top
    return (-2 * height < gap < _LINE_GAP * height and above.shares_column(below)) or abs(
        above.bottom - below.bottom
    ) < 1


def _lines(text_page: Any) -> Iterator[tuple[_Box, str]]:
    text = text_page.get_text_range()
    start = 0
    for line in text.split("\n"):
        shown = line.strip()
        if shown:
            first = start + line.index(shown[0])
            last = start + line.rindex(shown[-1])
            ends = [text_page.get_charbox(at, loose=True) for at in (first, last) if at < text_page.count_chars()]
            if ends:
                lefts, bottoms, rights, tops = zip(*ends, strict=True)
                yield _Box(min(lefts), min(bottoms), max(rights), max(tops)), line
        start += len(line) + 1
