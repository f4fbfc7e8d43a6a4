"""Plain text: one document per line, or one per file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.columns import make_array
from gristmill.core.table import POSITION
from gristmill.io.input import BadRecord
from gristmill.io.lines import MAX_LINE, read_head, read_lines
from gristmill.io.sniff import wrong_format

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.io.input import Input

TEXT, FILE_NAME = "text", "file_name"


def read_text_lines(source: Input, max_line_bytes: int = MAX_LINE) -> Iterator[pa.Table]:
    """A table per block of lines, without blank ones, with the byte offset of each in the POSITION column."""
    for offset, block in read_lines(source, max_line_bytes):
        texts, positions = _texts(source, block, offset)
        if texts:
            yield pa.table({TEXT: make_array(texts, pa.string()), POSITION: make_array(positions, pa.int64())})


def _texts(source: Input, block: bytes, offset: int) -> tuple[list[str], list[int]]:
    texts: list[str] = []
    positions: list[int] = []
    for line in block.split(b"\n"):
        try:
            text = line.removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            source.on_bad(BadRecord(offset, f"not valid UTF-8 at byte {error.start} of the line", line[:200]))
            text = ""
        if text.strip():
            texts.append(text)
            positions.append(offset)
        offset += len(line) + 1
    return texts, positions


def read_text_file(source: Input, max_bytes: int = MAX_LINE) -> str | None:
    """The whole file as one text; None when it is empty or bad."""
    total = 0
    pieces: list[bytes] = []
    for _, block in read_lines(source):
        total += len(block)
        pieces.append(block)
        if total > max_bytes:
            source.on_bad(BadRecord(0, f"a file of more than {max_bytes:,} bytes (the limit is max_line_bytes)"))
            return None
    raw = b"".join(pieces)
    try:
        return raw.decode() or None
    except UnicodeDecodeError as error:
        source.on_bad(BadRecord(0, f"not valid UTF-8 at byte {error.start}", raw[:200]))
        return None


def peek_text(source: Input, per_file: bool) -> pa.Schema | None:
    """The columns; None for an empty file. Raises InputError for a file that is no text."""
    head = read_head(source.whole(), 4096)
    if not head:
        return None
    error = wrong_format(source.path, "text", head)
    if error and not head.lstrip().startswith((b"<", b"{")) and "CSV" not in str(error):
        raise error
    names = {FILE_NAME: pa.string()} if per_file else {}
    return pa.schema({TEXT: pa.string(), **names, POSITION: pa.int64()})
