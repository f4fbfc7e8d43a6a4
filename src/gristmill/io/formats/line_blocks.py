"""Read a file, or a part of it, in blocks of whole lines, in bounded memory.

A byte range owns every line that starts in it, so that ranges which cover a file return each line exactly once. A
compressed file is one stream; if that is truncated or damaged, every line before the damage is still returned, and the
damage is reported as a bad record.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from gristmill.core.errors import InputError
from gristmill.io.formats.decompress import FIRST_READ_BYTES, DamagedStreamError, decompress
from gristmill.io.formats.format_detection import detect_compression
from gristmill.io.storage.file_input import MAX_RAW_BYTES, BadRecord, largest_block_bytes

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from gristmill.core.task import FileSlice
    from gristmill.io.storage.file_input import FileInput, OpenFile

MAX_LINE_BYTES = 256 * 2**20
HEAD_BYTES = 256 * 2**10

_CHUNK_BYTES = 2**20
_MAX_COUNTED_BYTES = 64 * 2**20


class ScannedBlock(NamedTuple):
    """The result of scanning a block of lines. The block itself is not kept; `read` reads it again."""

    result: Any
    size: int
    read: Callable[[], bytes]


BlockScanner = Callable[[int, int, int, bool], tuple[Any, int] | None]
"""Parses lines of an open file, and returns the result and the size of the lines: `kernels.json_columns_of`."""


def read_line_blocks(source: FileInput, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes]]:
    """Blocks of whole lines, each with its byte offset in the (decompressed) file."""
    return cast("Iterator[tuple[int, bytes]]", scan_line_blocks(source, max_line_bytes, None))


def scan_line_blocks(
    source: FileInput, max_line_bytes: int, scan: BlockScanner | None
) -> Iterator[tuple[int, bytes | ScannedBlock]]:
    """As `read_line_blocks`, but in local files a block that `scan` can parse is returned as a `ScannedBlock`."""
    # A line longer than the limit must span two chunks, since the limit is checked between chunks.
    size = min(_CHUNK_BYTES, source.blocksize, max_line_bytes)
    part = source.part
    if part.end is not None and part.end <= part.start:
        return
    with source.open() as file:
        kind = detect_compression(part.path, file.read(FIRST_READ_BYTES)) if part.start == 0 else None
        file.seek(0)
        offset = 0 if kind else _first_line(file, part)
        if offset is None:
            return
        # `map` keeps no reference to a block that was handed on: blocks are large, and callers free them early.
        yield from map(
            partial(_without_byte_order_mark, source), _blocks(source, file, kind, offset, size, max_line_bytes, scan)
        )


def _without_byte_order_mark(
    source: FileInput, offset_and_block: tuple[int, bytes | ScannedBlock]
) -> tuple[int, bytes | ScannedBlock]:
    """Count the bytes of a block, and remove a byte order mark at the start of the file."""
    start, block = offset_and_block
    if isinstance(block, ScannedBlock):
        source.on_bytes(block.size)
        return offset_and_block
    source.on_bytes(len(block))
    return (3, block[3:]) if start == 0 and block.startswith(codecs.BOM_UTF8) else offset_and_block


def _blocks(
    source: FileInput,
    file: OpenFile,
    kind: str | None,
    offset: int | None,
    size: int,
    max_line: int,
    scan: BlockScanner | None,
) -> Iterator[tuple[int, bytes | ScannedBlock]]:
    max_bytes = largest_block_bytes(source.blocksize)
    if file.local and not kind and offset is not None and max_line >= max_bytes:
        offset = yield from _blocks_in_place(file, offset, source.part, max_bytes, scan)
    if offset is not None:
        chunks = decompress(file, kind, size) if kind else _range(file, offset, source.part, size)
        yield from cut_whole_lines(chunks, offset, source.blocksize, max_line, source.on_bad)


def read_head(source: FileInput, size: int = HEAD_BYTES) -> bytes:
    """The first bytes of the (decompressed) file."""
    with source.open() as file:
        head = file.read(FIRST_READ_BYTES)
        kind = detect_compression(source.path, head)
        if not kind:
            more = size - len(head) if len(head) == FIRST_READ_BYTES else 0
            return (head + file.read(max(more, 0)))[:size]
        file.seek(0)
        pieces: list[bytes] = []
        try:
            for piece in decompress(file, kind, FIRST_READ_BYTES):
                pieces.append(piece)
                if sum(map(len, pieces)) >= size:
                    break
        except DamagedStreamError:
            pass  # reported when the file is read
        return b"".join(pieces)[:size]


def line_number(source: FileInput, offset: int) -> int | None:
    """The number of the line at an offset, counted from 1; None if counting would take long."""
    if offset > _MAX_COUNTED_BYTES:
        return None
    with source.open() as file:
        if detect_compression(source.path, file.read(FIRST_READ_BYTES)):
            return None
        file.seek(0)
        return file.read(offset).count(b"\n") + 1


# -- chunks ----------------------------------------------------------------------------------------------


def _first_line(file: OpenFile, part: FileSlice) -> int | None:
    """The offset of the first line that starts in the range; None if there is none."""
    start, end = part.start, part.end
    if start == 0:
        return 0
    position = start - 1
    file.seek(position)
    while end is None or position < end - 1:
        chunk = file.read(FIRST_READ_BYTES if end is None else min(FIRST_READ_BYTES, end - 1 - position))
        if not chunk:
            _check_end(part)
            return None
        newline = chunk.find(b"\n")
        if newline >= 0:
            return position + newline + 1
        position += len(chunk)
    return None


def _range(file: OpenFile, position: int, part: FileSlice, size: int) -> Iterator[bytes]:
    """The bytes from a position to the end of the range, and on to the end of its last line."""
    end = part.end
    file.seek(position)
    chunk = b"\n"
    while end is None or position < end:
        chunk = file.read(size if end is None else min(size, end - position))
        if not chunk:
            _check_end(part)
            return
        position += len(chunk)
        yield chunk
    if chunk.endswith(b"\n"):
        return
    while chunk := file.read(min(size, FIRST_READ_BYTES)):
        newline = chunk.find(b"\n")
        if newline >= 0:
            yield chunk[: newline + 1]
            return
        yield chunk


def _blocks_in_place(
    file: OpenFile, position: int, part: FileSlice, max_bytes: int, scan: BlockScanner | None
) -> Generator[tuple[int, bytes | ScannedBlock], None, int | None]:
    """Blocks of whole lines, each read with one call. Returns the offset of a line that may be too long for that; None
    at the end."""
    stop = None if part.end is None else _last_line_end(file, part, max_bytes)
    if part.end is not None and stop is None:
        return position
    # A list that is popped, and `del`, so that this generator keeps no reference to a block it has yielded.
    output: list[tuple[int, bytes | ScannedBlock]]
    while stop is None or position < stop:
        size = max_bytes if stop is None else min(stop - position, max_bytes)
        if scan and (scanned := scan(file.fileno(), position, size, position + size == stop)):
            output = [(position, ScannedBlock(*scanned, partial(_read_again, file, part.path, position, scanned[1])))]
            position += scanned[1]
            del scanned
            yield output.pop()
            continue
        scan = None  # what cannot be scanned in this block is likely to be in the other blocks, too
        block = _read_at(file, position, size)
        if len(block) < size and stop is not None:
            _check_end(part)
        if len(block) == size and position + size != stop:
            block = block[: block.rfind(b"\n") + 1]
            if not block:
                return position
        if not block:
            break
        output = [(position, block)]
        position += len(block)
        del block
        yield output.pop()
    return None


def _read_at(file: OpenFile, position: int, size: int) -> bytes:
    file.seek(position)
    return file.read(size)


def _read_again(file: OpenFile, path: str, position: int, size: int) -> bytes:
    block = _read_at(file, position, size)
    if len(block) < size:
        raise changed_file_error(path)
    return block


def changed_file_error(path: str) -> InputError:
    return InputError(f"{path} changed while it was read: start the run again")


def _last_line_end(file: OpenFile, part: FileSlice, max_bytes: int) -> int | None:
    """The end of the last line that starts in the range; None if it is longer than `max_bytes`."""
    assert part.end is not None
    position = part.end - 1
    file.seek(position)
    while position < part.end + max_bytes:
        chunk = file.read(FIRST_READ_BYTES)
        if not chunk and position < part.end:
            _check_end(part)
        newline = chunk.find(b"\n")
        if newline >= 0:
            return position + newline + 1
        position += len(chunk)
        if len(chunk) < FIRST_READ_BYTES:
            return position
    return None


def _check_end(part: FileSlice) -> None:
    """Raise an InputError if the file ended before its part."""
    if part.end is not None:
        raise InputError(f"{part.path} is shorter than when it was listed: start the run again")


# -- whole lines -----------------------------------------------------------------------------------------


def cut_whole_lines(
    chunks: Iterable[bytes], offset: int, blocksize: int, max_line: int, on_bad: Callable[[BadRecord], None]
) -> Iterator[tuple[int, bytes]]:
    """Cut a stream of bytes into blocks of whole lines. Lines longer than `max_line` are bad records."""
    cutter = _LineCutter(offset, max_line, on_bad)
    try:
        for chunk in chunks:
            cutter.add(chunk)
            if cutter.ready_bytes >= blocksize:
                cutter.seal()
            yield from cutter.take()
    except DamagedStreamError as damage:
        cutter.seal()
        yield from cutter.take()
        on_bad(BadRecord(cutter.line_start, str(damage), cutter.head()))
        return
    cutter.finish()
    yield from cutter.take()


class _LineCutter:
    """Collects whole lines (`ready`) and the incomplete last line (`open`). Each byte is searched once."""

    def __init__(self, offset: int, max_line: int, on_bad: Callable[[BadRecord], None]) -> None:
        self.max_line, self.on_bad = max_line, on_bad
        self.start = offset
        self.ready: list[bytes] = []
        self.ready_bytes = 0
        self.open: list[bytes] = []
        self.open_bytes = 0
        self.skipping = False
        self.blocks: list[tuple[int, bytes]] = []

    @property
    def line_start(self) -> int:
        return self.start + self.ready_bytes

    def head(self) -> bytes:
        """The open line, or its beginning."""
        pieces: list[bytes] = []
        left = MAX_RAW_BYTES
        for piece in self.open:
            pieces.append(piece[:left])
            left -= len(pieces[-1])
            if not left:
                break
        return b"".join(pieces)

    def add(self, chunk: bytes) -> None:
        first = chunk.find(b"\n")
        if first < 0:
            self._grow(chunk)
            return
        last = chunk.rfind(b"\n") + 1
        if self.open_bytes:
            self._grow(chunk[:first])
            self._close()
            first += 1
        else:
            first = 0
        self._add_ready(chunk[first:last])
        self._grow(chunk[last:])

    def seal(self) -> None:
        """Make a block of the lines that are ready."""
        if self.ready:
            self.blocks.append((self.start, b"".join(self.ready)))
        self.start, self.ready, self.ready_bytes = self.line_start, [], 0

    def take(self) -> Iterator[tuple[int, bytes]]:
        while self.blocks:
            yield self.blocks.pop(0)

    def finish(self) -> None:
        """Make a block of the rest: the last line of a file may lack a newline."""
        if self.open_bytes and not self.skipping:
            self._add_ready(b"".join(self.open))
        self.seal()

    def _add_ready(self, piece: bytes) -> None:
        if piece:
            self.ready.append(piece)
            self.ready_bytes += len(piece)

    def _grow(self, piece: bytes) -> None:
        self.open_bytes += len(piece)
        if not piece or self.skipping:
            return
        self.open.append(piece)
        if self.open_bytes > self.max_line:
            reason = f"a line of more than {self.max_line:,} bytes, the limit set by max_line_bytes"
            self.on_bad(BadRecord(self.line_start, reason, self.head()[: self.max_line]))
            self.skipping = True
            self.open.clear()

    def _close(self) -> None:
        """End the open line."""
        if self.skipping:
            after = self.line_start + self.open_bytes + 1
            self.seal()
            self.start = after
        else:
            self._add_ready(b"".join([*self.open, b"\n"]))
        self.open, self.open_bytes, self.skipping = [], 0, False
