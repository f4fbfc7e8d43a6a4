"""Read plain text: one document per line, or one per file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import POSITION
from gristmill.io.formats.format_detection import wrong_format_error
from gristmill.io.formats.line_blocks import MAX_LINE_BYTES, read_head, read_line_blocks
from gristmill.io.storage.file_input import MAX_BAD_RECORDS, MAX_RAW_BYTES, BadRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.io.storage.file_input import FileInput

TEXT_COLUMN, FILE_NAME_COLUMN = "text", "file_name"

_HEAD = 4096


def read_text_lines(source: FileInput, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[pa.Table]:
    """A table per block of lines, without blank lines, with the byte offset of each line in the POSITION column."""
    for offset, block in read_line_blocks(source, max_line_bytes):
        lines = iter(block.split(b"\n"))
        next_offset: int | None = offset
        while next_offset is not None:
            texts, positions, next_offset = _texts(source, lines, next_offset)
            if texts or next_offset is not None:  # even without texts: bad records are handed on between tables
                yield pa.table(
                    {TEXT_COLUMN: make_array(texts, pa.string()), POSITION: make_array(positions, pa.int64())}
                )


def _texts(source: FileInput, lines: Iterator[bytes], offset: int) -> tuple[list[str], list[int], int | None]:
    """Texts, their offsets, and the offset to continue at: stops after `MAX_BAD_RECORDS`, else None."""
    texts: list[str] = []
    positions: list[int] = []
    bad = 0
    for line in lines:
        start, offset = offset, offset + len(line) + 1
        try:
            text = line.removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            source.on_bad(BadRecord(start, f"not valid UTF-8 at byte {error.start} of the line", line[:MAX_RAW_BYTES]))
            bad += 1
            if bad == MAX_BAD_RECORDS:
                return texts, positions, offset
            continue
        if text.strip():
            texts.append(text)
            positions.append(start)
    return texts, positions, None


def read_text_file(source: FileInput, max_bytes: int = MAX_LINE_BYTES) -> str | None:
    """The whole file as one text; None if it is empty, or bad in any part."""
    bad: list[BadRecord] = []
    total = 0
    pieces: list[bytes] = []
    for _, block in read_line_blocks(replace(source, on_bad=bad.append)):
        total += len(block)
        pieces.append(block)
        if total > max_bytes:
            break
    raw = b"".join(pieces)
    if bad:
        source.on_bad(BadRecord(0, bad[0].reason, (raw or bad[0].raw)[:MAX_RAW_BYTES]))
        return None
    try:
        return _decode(raw, max_bytes) or None
    except ValueError as error:
        source.on_bad(BadRecord(0, str(error), raw[:MAX_RAW_BYTES]))
        return None


def _decode(raw: bytes, max_bytes: int) -> str:
    if len(raw) > max_bytes:
        raise ValueError(f"a file of more than {max_bytes:,} bytes, the limit set by max_line_bytes")
    if b"\0" in raw[:_HEAD]:
        raise ValueError("binary data, not text")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not valid UTF-8 at byte {error.start}") from error


def peek_text(source: FileInput, per_file: bool) -> pa.Schema | None:
    """The columns; None for an empty file. Raises an InputError for a file that is not text."""
    head = read_head(source.whole(), _HEAD)
    if not head:
        return None
    error = wrong_format_error(source.path, "text", head)
    if error and not head.lstrip().startswith((b"<", b"{")) and "CSV" not in str(error):
        raise error
    names = {FILE_NAME_COLUMN: pa.string()} if per_file else {}
    return pa.schema({TEXT_COLUMN: pa.string(), **names, POSITION: pa.int64()})
